"""What a job's log says of its end: the error, without what differs between two runs into the same fault."""

import re

_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Warning)\b.*")
_OURS = re.compile(r"^(?:error|hung): .*")
_OTHERS = re.compile(r"^.*(?:Fatal Python error|OOMKilled|RESOURCE_EXHAUSTED|Check failed).*")
_PEER = re.compile(
    r"coordination service|heartbeat|Connection (?:reset|closed|refused)|Gloo|could not join|DEADLINE_EXCEEDED|barrier"
    r"|another task|UNAVAILABLE|Socket closed|Broken pipe",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^\[[^\]]{1,200}\]\s+")
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x#"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?"), "ADDRESS"),
    (re.compile(r"\b(?:pid|process|task|port|host)[ =:]*[\w.-]*\d[\w.-]*", re.IGNORECASE), "PROCESS"),
    (re.compile(r"for \d+ s\b"), "for # s"),
)
_MOST_CHARACTERS = 400


def last_error(text: str) -> str:
    """The last error in a log, in a form that is equal for two ends by the same fault; "" without one.

    An error that only tells of another process's end is none: it is the other one that counts.
    """
    found = ""
    for line in text.splitlines():
        line = _PREFIX.sub("", line).strip()
        if any(form.match(line) for form in (_EXCEPTION, _OURS, _OTHERS)) and not _PEER.search(line):
            found = line
    for form, instead in _VARYING:
        found = form.sub(instead, found)
    return found[:_MOST_CHARACTERS]


def last_lines(text: str, count: int = 30) -> str:
    """The last lines, for people."""
    return "\n".join(text.splitlines()[-count:])
