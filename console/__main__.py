"""``raydeck``: the command line. What a command does not need is not imported: paint first, import after."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command line."""
    # Most of start-up is imports, which make objects that live for ever: collecting among them costs and frees nothing.
    gc.disable()
    from console.cli.main import command_line

    command_line()


if __name__ == "__main__":
    main()
