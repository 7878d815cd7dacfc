"""The report's section on parity with `transformers`. Records in, markup out."""

from ectype.report.markup import (
    Cell,
    Html,
    Part,
    bound,
    chip,
    definitions,
    missing,
    number,
    percent,
    section,
)
from ectype.weights import parity_record
from ectype.weights.parity_record import ParityRecord


def parity_part(parity: ParityRecord | None) -> Part:
    """Logits of a checkpoint beside those of `transformers` on the same weights."""
    title = "Parity with transformers"
    lead = "Our logits beside those that Hugging Face transformers computes from the same weights."
    if parity is None:
        none = missing(
            "Parity was not measured: it needs torch, which the core install leaves out.", parity_record.COMMAND
        )
        return Part("parity", "Parity", section("parity", title, lead, none))
    said = chip("good", "the same function") if parity.same else chip("bad", "not the same function")
    versions = ", ".join(f"{name} {version}" for name, version in parity.versions.items())
    limits = parity.tolerances
    exact = parity.dtype == "float32"
    pairs: list[tuple[Cell, Cell]] = [
        ("Compared", f"{parity.length_tokens:,} positions, in {parity.dtype}, against {versions}"),
        (
            "Largest logit difference",
            _with_limit(parity.logit_difference_max, parity.logit_difference_limit, exact),
        ),
        ("Mean logit difference", Html(number(parity.logit_difference_mean))),
        ("KL, mean", Html(f"{number(parity.kl_mean)} nats")),
        ("KL, 99th percentile", Html(f"{number(parity.kl_p99)} nats")),
        ("KL, largest", _with_limit(parity.kl_max, limits.kl_max, exact)),
        ("Top-1 agreement", Html(percent(parity.top1_agreement, 3))),
    ]
    if parity.reference_kl_mean is not None:
        pairs.append(("KL of transformers' own bfloat16, mean", Html(f"{number(parity.reference_kl_mean)} nats")))
    if fault := parity.first_fault:
        where = "outside the layers" if fault.layer is None else f"layer {fault.layer}"
        pairs.append(("First place that differs", f"{where}, {fault.group}: {', '.join(fault.tensors)}"))
    body = (f"<p>{said.text}</p>", definitions(pairs))
    return Part("parity", "Parity", section("parity", title, lead, *body))


def _with_limit(value: float | None, limit: float, applies: bool) -> Html:
    return Html(f"{number(value)}{f' of at most {bound(limit)}' if applies else ''}")
