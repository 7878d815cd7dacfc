"""The training command as a list of arguments, and the running of other programs. No shell takes part on this side."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ectype.errors import EctypeError

CALL_LIMIT_SECONDS = 300.0
NOT_FOUND, TIMED_OUT = 127, 124
_SECRET_WORDS = {"KEY", "AUTH", "PASS", "PWD"}
"""Words of a variable's name that speak of a secret when they stand alone; `MONKEY` and `AUTHOR` do not."""
_SECRET_NAME = re.compile(
    r"TOKEN(?!S|IZER)|SECRET|PASSW|PASSPHRASE|(?<!BY)PASS$|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING)_?KEY|WEBHOOK|AUTHORI[SZ]ATION"
)
"""The same wherever they stand in a name, written in capitals."""
_WORDS_OF_A_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]+|AKIA[A-Z0-9]{12,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]+|eyJ[\w-]{16,}\.[\w-]+|hooks\.slack\.com/services/|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?:^|://)[^/\s:@]+:[^/\s@]+@(?!sha256:)|\bBearer\s+\S|/api/webhooks/"
    r"|[?&](?:\w*token|sig|signature|X-Goog-Signature|X-Amz-Signature)="
)
_SECRET_PLACE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Training:
    """What `ectype train` is to run."""

    recipe: str
    run: str
    """Run folder, as the job sees it."""
    placement: str = "cpu"
    overrides: tuple[str, ...] = ()
    placement_overrides: tuple[str, ...] = ()
    index: str | None = None
    remap: tuple[str, ...] = ()
    weights: str | None = None
    padded_rows: str | None = None
    source: str | None = None
    until: int | None = None
    coordinator: str | None = None
    """`auto` where the cluster tells processes of each other, so that none ever trains alone by mistake."""

    def arguments(self) -> list[str]:
        """The arguments behind `ectype`.

        Raises:
            EctypeError: a value that no shell script carries, or one that looks like a secret.
        """
        options: list[tuple[str, str | None]] = [("--run", self.run), ("--placement", self.placement)]
        options += [("--set", value) for value in self.overrides]
        options += [("--placement-set", value) for value in self.placement_overrides]
        options += [("--index", self.index), *(("--remap", value) for value in self.remap)]
        options += [("--weights", self.weights), ("--padded-rows", self.padded_rows), ("--from", self.source)]
        options += [("--until", None if self.until is None else str(self.until)), ("--coordinator", self.coordinator)]
        given = [
            "train",
            self.recipe,
            *(part for name, value in options if value is not None for part in (name, value)),
        ]
        for value in given:
            check_argument(value)
        return given


def process_arguments(number: int | str, count: int, coordinator: str) -> list[str]:
    """What tells a job's processes apart, behind the arguments that they share; nothing for one that is alone.

    Args:
        number: of this process, from 0, or the text that becomes it where the job runs.
        coordinator: HOST:PORT where they meet.
    """
    if count == 1:
        return []
    return ["--coordinator", coordinator, "--processes", str(count), "--process", str(number)]


def check_argument(value: str) -> None:
    """Refuse what would not come through a YAML block and a shell as it is, and what should not be seen there.

    Raises:
        EctypeError: a line break, another control character, or something like a secret.
    """
    if not value.isprintable():
        raise EctypeError(
            f"argument {value!r} of the job", "no line breaks or control characters", "put it into a recipe file"
        )
    if _SECRET_VALUE.search(value):
        raise secret_error(f"an argument that begins with {value[:4]!r} looks like a secret")


def secret_error(found: str) -> EctypeError:
    """The error for a secret in plain sight."""
    return EctypeError(
        found, "secrets by reference only: command lines, manifests and logs are read by many",
        "give the cluster's service account the rights, or --secret-env NAME=SECRET:KEY with `ectype launch manifest`",
    )  # fmt: skip


def check_environment(pairs: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` pairs as a mapping.

    Raises:
        EctypeError: another form, or a name or value that looks like a secret's.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not _NAME.fullmatch(name):
            raise EctypeError(f"--env {name!r}", "NAME=VALUE", "give a name, = and a value")
        # A path says where a secret is mounted, which is a reference.
        if _is_secret_name(name) and not value.startswith("/"):
            raise secret_error(f"--env {name}: the name is a secret's")
        if _SECRET_VALUE.search(value):
            raise secret_error(f"--env {name}: its value looks like a secret")
        check_argument(value)
        found[name] = value
    return found


def _is_secret_name(name: str) -> bool:
    words = {word.upper() for word in _WORDS_OF_A_NAME.findall(name)}
    return bool(words & _SECRET_WORDS or _SECRET_NAME.search(name.upper()))


def check_secrets(references: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    """`NAME=SECRET:KEY` references to Kubernetes secrets as variable, secret and key.

    Raises:
        EctypeError: another form, as a secret itself has.
    """
    found = []
    for reference in references:
        name, _, place = reference.partition("=")
        secret, _, key = place.partition(":")
        if not _NAME.fullmatch(name) or not _SECRET_PLACE.fullmatch(secret) or not re.fullmatch(r"[-._\w]+", key):
            raise EctypeError(
                f"--secret-env {name}=...", "NAME=SECRET:KEY, where SECRET is the name of a Kubernetes secret",
                "make one with `kubectl create secret generic SECRET --from-file=KEY=FILE`",
            )  # fmt: skip
        found.append((name, secret, key))
    return tuple(found)


def shell_text(arguments: list[str]) -> str:
    """The arguments as one line for a shell, which gives them back one by one, whatever is in them."""
    return shlex.join(arguments)


@dataclass(frozen=True)
class Ran:
    """How a program ended."""

    code: int
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """The line in which it says what went wrong, else its last one, else what there is to say."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(("ERROR:", "error:", "Error from server"))]
        silent = f"exit {self.code}, {len(self.output)} characters of output"
        return next(reversed(said or lines), silent)


def call(arguments: list[str], limit_seconds: float = CALL_LIMIT_SECONDS) -> Ran:
    """Run a program without a shell and without input. One that is missing or hangs is an exit code, too."""
    try:
        ran = subprocess.run(
            arguments, capture_output=True, stdin=subprocess.DEVNULL, timeout=limit_seconds, check=False
        )
    except FileNotFoundError:
        return Ran(NOT_FOUND, "", f"{arguments[0]}: not found on PATH")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(TIMED_OUT, "", f"{arguments[0]}: {error}")
    return Ran(ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace"))


def tail_of(path: Path, most_bytes: int = 16384) -> str:
    """The end of a text file; empty without one."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - most_bytes))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
