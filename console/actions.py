"""Every action that a key or a command can ask for, as one table. Help, palette, bindings and docs are made from it.

The rule for keys: lower case looks, upper case touches. A leaf: it names scopes by word and imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.errors import Refused


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an operator can do."""

    name: str
    keys: tuple[str, ...]
    """Textual's key names; the first is shown in help."""
    sentence: str
    """What it does, for help and palette."""
    scope: str = "everywhere"
    """Where it is offered: ``everywhere``, ``table``, ``fleet``, ``node``, ``upkeep``, ``drains``, ``alerts``,
    ``triage``, ``runs``, ``run``, ``releases``, ``validations``, ``validation``, ``log``."""
    touches: bool = False
    """Changes something on the cluster: asks first, and is off in read-only mode."""
    footer: str = ""
    """A word for the footer line; not shown there if empty."""


ACTIONS: tuple[Action, ...] = (
    Action("help", ("question_mark", "f1"), "This page", footer="help"),
    Action("command", ("colon",), "Type a command: :queue :run RUN :explain RUN :drain NODE :cordon NODE :audit"),
    Action("back", ("escape",), "Clear the filter, then close what is open; never changes anything"),
    Action("quit", ("q",), "Back; at the first screen, quit"),
    Action("fleet", ("1",), "The fleet: every GPU, every node"),
    Action("runs", ("2",), "The runs, and Ray's own jobs"),
    Action("queue", ("3",), "The queues: what they hold, who waits, and why"),
    Action("releases", ("4",), "The releases of all workflows, and how they fared"),
    Action("audit", ("5",), "The audit log: who asked for what, allowed or refused"),
    Action("drains", ("6",), "The drains: how far each node is, and what is to be chosen"),
    Action("alerts", ("7",), "The alerts: what fires, who has it, what to do"),
    Action("validations", ("8",), "The validations: what was proven, and who was to blame"),
    Action("earlier", ("comma",), "Back in time, 10 s: the recording of the last hour, in every screen"),
    Action("later", ("full_stop",), "Forward in time, 10 s; at its end it is now again"),
    Action("minute_earlier", ("left_parenthesis", "ctrl+left"), "Back in time, a minute"),
    Action("minute_later", ("right_parenthesis", "ctrl+right"), "Forward in time, a minute"),
    Action("mark_before", ("left_curly_bracket",), "Back in time, to what happened before that"),
    Action("mark_after", ("right_curly_bracket",), "Forward in time, to what happened next"),
    Action("play", ("p",), "Play what is recorded, ten times as fast, pause"),
    Action("next_pane", ("tab",), "To the next pane"),
    Action("refresh", ("ctrl+r", "f5"), "Ask Ray and the controller again now"),
    Action("mouse", ("m",), "Mouse on or off (off over SSH, so that the terminal can select text)"),
    Action("copy", ("c",), "Copy the name or line under the cursor (OSC 52, and a file)"),
    Action("raw", ("y",), "The thing under the cursor as JSON"),
    Action("controller", ("O",), "Start the controller on the head", touches=True),
    Action("move", ("j", "k", "g", "G", "ctrl+d", "ctrl+u"), "Down, up, first, last, half a page down, up", "table"),
    Action("filter", ("slash",), "Show only rows with this text (! in front: without it)", "table", footer="filter"),
    Action("sort_next", ("greater_than_sign",), "Sort by the column to the right", "table"),
    Action("sort_previous", ("less_than_sign",), "Sort by the column to the left", "table"),
    Action("reverse", ("r",), "Turn the order round", "table"),
    Action("mark", ("space",), "Mark the row", "table"),
    Action("mark_all", ("a",), "Mark all rows that the filter shows, or none", "table"),
    Action("open", ("enter", "d"), "Open the thing under the cursor", "table"),
    Action("pane_next", ("tab", "right"), "The next pane of the run", "run"),
    Action("pane_previous", ("shift+tab", "left"), "The pane before", "run"),
    Action("why", ("i",), "Triage: what broke, whose fault it is, what is missing", "fleet", footer="why"),
    Action("why", ("i",), "Triage of it: why it waits, failed, hangs or is slow", "runs", footer="why"),
    Action("log", ("l",), "The log", "runs", footer="log"),
    Action("sweep", ("w",), "Its sweep: every point side by side", "runs"),
    Action("difference", ("v", "equals_sign"), "The two marked releases side by side", "releases", footer="difference"),
    Action("acknowledge", ("A",), "Say that you have it: it is not told again", "alerts", True, "acknowledge"),
    Action("mute", ("M",), "Silence it for a while, or end its silence", "alerts", True, "mute"),
    Action("clear_alert", ("X",), "Clear it after a repair (what is latched or flaps)", "alerts", True, "clear"),
    Action("why", ("i",), "Triage: what broke, and whose fault it is", "alerts", footer="why"),
    Action("alert_history", ("h",), "The history: those that ended too", "alerts", footer="history"),
    Action("alert_node", ("n",), "The node that it is on", "alerts", footer="node"),
    Action("alert_run", ("o",), "The run that it is about", "alerts", footer="run"),
    Action("log", ("l",), "The log of the run that it is about", "alerts"),
    Action("shell", ("s",), "An SSH shell on the node that it is on", "alerts"),
    Action("stop", ("K", "ctrl+k", "f9"), "Stop the run that it is about", "alerts", True),
    Action("restart", ("R",), "Restart that run from one of its checkpoints", "alerts", True),
    Action("move", ("j", "k", "g", "G", "ctrl+d", "ctrl+u"), "Down and up: the findings, or (tab) the text", "triage"),
    Action("open", ("enter", "d"), "The finding with all its evidence and what followed", "triage", footer="evidence"),
    Action("again", ("r",), "Gather and judge again", "triage", footer="again"),
    Action("export", ("e",), "Everything in one archive, redacted, in this folder", "triage", footer="export"),
    Action("log", ("l",), "The log, at the line that shows it", "triage", footer="log"),
    Action("stop", ("K", "ctrl+k", "f9"), "Stop the run", "triage", True),
    Action("restart", ("R",), "Restart the run from one of its checkpoints", "triage", True),
    Action("rollback", ("B",), "Put an earlier release in its place", "triage", True),
    Action("arrange", ("P",), "Priority, hold, place or queue of the run", "triage", True),
    Action("shell", ("s",), "An SSH shell on the culprit's node", "triage"),
    Action("open", ("enter", "d"), "From a stage to its nodes; of a node its figures, and how they were", "validation"),
    Action("figures", ("h",), "Its figures beside those of earlier validations", "validation", footer="figures"),
    Action("log", ("l",), "The validation's own log", "validation", footer="log"),
    Action("export", ("e",), "The report as HTML and Markdown, in this folder", "validation", footer="export"),
    Action("stop", ("K", "ctrl+k", "f9"), "Stop the validation", "validation", True, "stop"),
    Action("difference", ("v", "equals_sign"), "The two marked ones compared", "validations", footer="difference"),
    Action("log", ("l",), "The validation's own log", "validations", footer="log"),
    Action("stop", ("K", "ctrl+k", "f9"), "Stop the validation", "validations", True, "stop"),
    Action("shell", ("s",), "An SSH shell on the node (the screen comes back when it ends)", "fleet"),
    Action("validate", ("V",), "Prove the marked nodes, or all, once more", "validation", True, "validate"),
    Action("more_time", ("W",), "At the deadline: wait on, so long", "drains", True, "wait on"),
    Action("end_rest", ("H",), "At the deadline: end what has not left", "drains", True, "end rest"),
    Action("give_up", ("L",), "At the deadline: give up; stays cordoned", "drains", True, "give up"),
    Action("stop_drain", ("X",), "Stop the drain; its nodes stay cordoned", "drains", True, "stop drain"),
    Action("cordon", ("C",), "Keep new work off; what runs there goes on", "upkeep", True, "cordon"),
    Action("uncordon", ("U",), "Take a hold back: they take work again", "upkeep", True, "uncordon"),
    Action("drain", ("D",), "Cordon, and move their work off", "upkeep", True, "drain"),
    Action("retire", ("E",), "Take them out of Ray, for good", "upkeep", True, "retire"),
    Action("rejoin", ("J",), "Start Ray there again, and open them", "upkeep", True, "rejoin"),
    Action("end_process", ("T",), "End left-over processes that hold GPUs", "node", True, "sweep"),
    Action("kill_process", ("K",), "The same, and kill what does not heed it", "node", True),
    Action("launch", ("S",), "Launch a workflow", touches=True, footer="launch"),
    Action("validate", ("V",), "Prove the marked nodes, or all, before they are trusted", "fleet", True, "validate"),
    Action("validate", ("V",), "Prove all nodes again, stage by stage", "validations", True, "validate"),
    Action("stop", ("K", "ctrl+k", "f9"), "Stop the run: save, leave, then end the job", "runs", True, "stop"),
    Action("restart", ("R",), "Restart the run from one of its checkpoints", "runs", True, "restart"),
    Action("rollback", ("B",), "Put an earlier release in its place, or take that back", "runs", True, "rollback"),
    Action("rollback", ("B",), "Roll its workflow back to this release", "releases", True, "rollback"),
    Action("arrange", ("P",), "Priority, hold, place or queue of those that wait", "runs", True, "priority"),
    Action("follow", ("f",), "Follow the end of the log, or pause", "log", footer="follow"),
    Action("search", ("slash", "n", "N"), "Search, next, previous", "log", footer="search"),
    Action("rank_next", ("right_square_bracket",), "The next rank alone; after the last, all", "log", footer="rank"),
    Action("rank_previous", ("left_square_bracket",), "The rank before alone, or all", "log"),
    Action("wrap", ("w",), "Wrap long lines, or cut them", "log"),
)
"""An action that means the same thing in two scopes stands twice, under one name, with the same keys."""

BY_NAME: Mapping[str, Action] = {action.name: action for action in ACTIONS}

TOUCHING_KEYS = frozenset(key for action in ACTIONS if action.touches for key in action.keys)


def key_label(key: str) -> str:
    """A key as people write it."""
    names = {
        "question_mark": "?",
        "colon": ":",
        "slash": "/",
        "less_than_sign": "<",
        "greater_than_sign": ">",
        "left_square_bracket": "[",
        "right_square_bracket": "]",
        "equals_sign": "=",
        "comma": ",",
        "full_stop": ".",
        "left_parenthesis": "(",
        "right_parenthesis": ")",
        "left_curly_bracket": "{",
        "right_curly_bracket": "}",
        "escape": "esc",
    }
    return names.get(key, key.replace("ctrl+", "^"))


def check_keys(keys: Mapping[str, str]) -> Mapping[str, str]:
    """A person's own keys, refused if one is for no action, or takes the place of a key that changes something."""
    for name, chosen in keys.items():
        if name not in BY_NAME:
            raise Refused(f"settings: keys: there is no action {name!r}", f"Known are: {', '.join(sorted(BY_NAME))}")
        for key in chosen.split(","):
            if key.strip() in TOUCHING_KEYS and key.strip() not in BY_NAME[name].keys:
                raise Refused(f"settings: keys: {key_label(key.strip())} changes something and cannot mean {name!r}")
    return keys
