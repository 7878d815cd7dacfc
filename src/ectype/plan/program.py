"""The TPU compiler's optimised program, read from its text: what runs how often, at what cost, from which source line.

Loop bodies stand in the text once; here everything is counted as often as its loops run it. The compiler states its own
estimate of cycles for each scheduled operation, or a sentinel where it has none.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

UNKNOWN_CYCLES = 2**63 - 1
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all", "collective-permute")

_ELEMENT_BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "f8e4m3fn": 8, "f8e5m2": 8, "s16": 16, "u16": 16, "f16": 16,
    "bf16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64,
}  # fmt: skip
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}])([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*(?:e\dm\d(?:fn)?)?)\[([\d,]*)\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLED = re.compile(r"\b(?:calls|to_apply|body|called_computations)=\{?%?([\w.\-]+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shape_bytes: int
    """Of the result; of a tuple, all its parts."""
    text: str = field(repr=False)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it states none; `UNKNOWN_CYCLES` where it does not know."""
        match = _CYCLES.search(self.text)
        return None if match is None else int(match[1])

    @property
    def called(self) -> str | None:
        """The computation that it calls, loops over or fuses."""
        match = _CALLED.search(self.text)
        return None if match is None else match[1]

    @property
    def operands(self) -> list[str]:
        """Names of what it takes."""
        inside = self.text[self.text.index(f"{self.opcode}(") + len(self.opcode) + 1 :]
        return re.findall(r"%([\w.\-]+)", inside[: inside.index(")")])


@dataclass(frozen=True)
class Executed:
    """An instruction, how often one step runs it, and inside which fused computation it stands, if any."""

    instruction: Instruction
    times: int
    fused_into: str | None
    beside: bool
    """Whether it runs beside the matrix units: within what a `-start` operation calls."""
    source: str
    """`file:line` of the package's own line that it comes from; empty where the compiler does not say."""


@dataclass(frozen=True)
class Program:
    """All computations by name."""

    computations: dict[str, list[Instruction]]
    entry: str
    sources: dict[int, str]
    loops_without_count: tuple[str, ...]
    trip_counts: dict[str, int]
    """By name of the loop's instruction."""

    def executed(self) -> Iterator[Executed]:
        """Every scheduled instruction with its count, and those inside fusions with the fusion's."""
        yield from self._walk(self.entry, 1, None, False, ())

    def _walk(
        self, name: str, times: int, fused: str | None, beside: bool, above: tuple[str, ...]
    ) -> Iterator[Executed]:
        if name in above:
            return
        for instruction in self.computations.get(name, ()):
            frame = _FRAME.search(instruction.text)
            source = self.sources.get(int(frame[1]), "") if frame else ""
            start = instruction.opcode.endswith("-start")
            yield Executed(instruction, times, fused, beside or start, source)
            called = instruction.called
            if called is None or instruction.opcode in ("reduce", "sort", "scatter", "map", "reduce-window"):
                continue
            loop = instruction.opcode == "while"
            inner = times * self.trip_counts.get(instruction.name, 1) if loop else times
            scheduled = loop or instruction.opcode in ("call", "conditional")
            inside = fused if scheduled else called
            yield from self._walk(called, inner, inside, beside or start, (*above, name))


def parse_program(text: str) -> Program:
    """Read the text that `compiled.as_text()` gives for a TPU program."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
            continue
        if line == "}":
            current = None
        if current is None:
            continue
        found = _INSTRUCTION.match(line)
        if found is not None:
            current.append(_instruction(found[1], found[2]))
        elif current:
            # Attributes of a kernel may hold line breaks.
            current[-1] = replace(current[-1], text=current[-1].text + line)
    loops = [one for body in computations.values() for one in body if one.opcode == "while"]
    counts = {loop.name: _trip_count(loop, computations) for loop in loops}
    return Program(
        computations, entry, _source_lines(text),
        tuple(name for name, count in counts.items() if count is None),
        {name: count for name, count in counts.items() if count is not None},
    )  # fmt: skip


def _instruction(name: str, rest: str) -> Instruction:
    # A tuple's type holds no opcode-like word before a parenthesis, so the first one is the opcode.
    match = _OPCODE.search(rest)
    opcode = match[1] if match else ""
    shape = rest[: match.start(1)] if match else rest
    return Instruction(name, opcode, shape_bytes(shape), rest)


def shape_bytes(text: str) -> int:
    """Bytes of all array shapes in a piece of text, layouts and padding not counted."""
    total = 0
    for element, sizes in _SHAPE.findall(text):
        if element in _ELEMENT_BITS:
            count = math.prod(int(size) for size in sizes.split(",") if size)
            total += count * _ELEMENT_BITS[element] // 8
    return total


def _trip_count(loop: Instruction, computations: dict[str, list[Instruction]]) -> int | None:
    """How often the loop runs: the constant that its condition compares a counter from 0 with."""
    condition = re.search(r"condition=%?([\w.\-]+)", loop.text)
    body = computations.get(condition[1], []) if condition else []
    constants = {
        one.name: int(match[1]) for one in body if (match := re.search(r"s32\[\]\S* constant\((\d+)\)", one.text))
    }
    compares = [one for one in body if one.opcode == "compare" and "direction=LT" in one.text]
    limits = [constants[name] for one in compares for name in one.operands if name in constants]
    return limits[0] if len(limits) == 1 else None


def _source_lines(text: str) -> dict[int, str]:
    """By stack frame, the innermost line that belongs to the package."""
    files = {int(n): path for n, path in re.findall(r'^(\d+) "([^"]+\.py)"$', text, re.M)}
    places = {
        int(n): (int(file), int(line))
        for n, file, line in re.findall(r"^(\d+) \{file_name_id=(\d+) .*?line=(\d+)", text, re.M)
    }
    frames = {
        # The text counts parents from one more than frames: the outermost frame has parent 1.
        int(n): (int(place), int(parent) - 1)
        for n, place, parent in re.findall(r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}", text, re.M)
    }

    def own_line(frame: int) -> str:
        while frame in frames:
            place, parent = frames[frame]
            file, line = places.get(place, (0, 0))
            path = files.get(file, "")
            if "ectype/" in path:
                return f"{path.rsplit('ectype/', 1)[1]}:{line}"
            frame = parent
        return ""

    return {frame: own_line(frame) for frame in frames}
