"""How one thing is asked of a GPU through nvidia-ml-py, and the words for what NVML answers instead of it."""

from __future__ import annotations

from typing import Any, Callable

import pynvml

from probes.reading import ERROR, UNSUPPORTED, DeviceFacts, Missing
from probes.source import LOST, label

GONE = Missing(ERROR, "the driver lists this GPU no more: it fell off the bus or was taken away")
_TOO_OLD_WORDS = Missing(UNSUPPORTED, "NVML: the driver is too old to tell")
_WORDS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Missing(UNSUPPORTED, "NVML: not supported"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: _TOO_OLD_WORDS,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: _TOO_OLD_WORDS,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Missing(UNSUPPORTED, "NVML: not for this device"),
    pynvml.NVML_ERROR_GPU_IS_LOST: LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Missing(ERROR, "GPU needs a reset"),
    pynvml.NVML_ERROR_NO_PERMISSION: Missing(ERROR, "no permission"),
    pynvml.NVML_ERROR_UNKNOWN: Missing(ERROR, "the driver failed with an unknown error"),
}
_TOO_OLD = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


def code(error: Any) -> int:
    """NVML's number for what went wrong."""
    return error.value


def missing(error: pynvml.NVMLError) -> Missing:
    """NVML's error as a kind of missing, and words."""
    return _WORDS.get(code(error)) or Missing(ERROR, "NVML: {}".format(str(error).rstrip(".").lower()))


def missing_of(number: int) -> Missing:
    """The same, of NVML's number for it."""
    return _WORDS.get(number) or missing(pynvml.NVMLError(number))


class Query:
    """One thing to ask of a device: the columns or fields that it fills, and the calls that can, the newest first."""

    def __init__(
        self,
        names: str,
        *forms: tuple[Any, ...],
        take: Callable[[Any], tuple[Any, ...]] | None = None,
        call: str = "",
    ) -> None:
        """``forms`` are (the call, or its name in nvidia-ml-py, its further arguments …); ``take`` makes the names'
        values of the answer. A form that the installed nvidia-ml-py does not know is passed over. ``call``: its name
        where the first form is ours."""
        self.names = names.split()
        self.call = call or str(forms[0][0])
        calls = [(getattr(pynvml, to, None) if isinstance(to, str) else to, arguments) for to, *arguments in forms]
        self._forms = [(call, arguments) for call, arguments in calls if call is not None]
        self._take = take

    def ask(self, handle: Any) -> tuple[Any, ...]:
        """One value for each name. Raises ``NVMLError``."""
        while self._forms:
            call, arguments = self._forms[0]
            try:
                answer = call(handle, *arguments)
            except pynvml.NVMLError as error:
                if code(error) not in _TOO_OLD or len(self._forms) == 1:
                    raise
                del self._forms[0]
            else:
                return self._take(answer) if self._take is not None else (answer,)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class Lost(Exception):
    """This GPU answers nothing any more."""


class Device:
    """One GPU: its place on screen and in NVML, its handle, and what it was found not to support."""

    def __init__(self, index: int, place: int, queries: list[Query]) -> None:
        self.index = index
        self.place = place
        self.handle: Any = None
        self.trouble = GONE
        """Why there is no handle."""
        self.facts = DeviceFacts(index)
        self.pci = ""
        """Its address on the bus, once it was asked; kept when it is lost, since the kernel's lines name it so."""
        self.unsupported: dict[str, tuple[float, Missing]] = {}
        """First name of a query to (when to ask again, why not)."""
        self.fields: Query | None = None
        """Asks for all its field values in one call; made when its number of links is known."""
        self.seldom: tuple[float, dict[str, Any], dict[str, Missing]] = (0.0, {}, {})
        """When to ask again (monotonic) for what hardly changes, and the figures and reasons until then."""
        self._labels = {query.names[0]: label("{} on GPU {}".format(query.call, index)) for query in queries}

    @property
    def mig_on(self) -> bool:
        """It is divided into instances now."""
        return (self.facts.mig_mode or "") in ("on", "off after reset")

    def begin_anew(self) -> None:
        """It has a new handle: what was found out about the old one is forgotten."""
        self.unsupported.clear()
        self.fields = None
        self.seldom = (0.0, {}, {})

    def label(self, query: Query) -> bytes:
        """The call that this query makes of this device, in words for `Mark`."""
        key = query.names[0]
        if key not in self._labels:
            self._labels[key] = label("{} on GPU {}".format(query.call, self.index))
        return self._labels[key]
