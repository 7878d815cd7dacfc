"""Small made-up evaluations, logs and noise for tests of the verdict."""

import numpy as np

from ectype.compare.criteria import Grounds
from ectype.compare.noise import LandmarkNoise, Noise
from ectype.compare.tolerances import load_floors
from ectype.evaluate.record import Evaluation, InputHashes, Protocol
from ectype.evaluate.summary import domain_record, join_measures, reduce_measures, summarise
from ectype.recipe.reference import TrainingLog

DOMAINS = ("prose", "code")
LANDMARKS = (0, 50, 100)
STEPS = 100
WINDOWS, TARGETS = 20, 255


def evaluation(
    step: int, *, shift: float = 0.0, spread: float = 0.0, kl: float = 0.0, agree: float = 1.0, windows: int = WINDOWS,
    seed: int = 0,
) -> Evaluation:  # fmt: skip
    """An evaluation whose losses differ by exactly `shift` nats on average, and vary by `spread` between windows."""
    generator = np.random.default_rng(seed + step)
    domains = {}
    for name in DOMAINS:
        shape = (windows, TARGETS)
        reference = generator.gamma(2.0, 2.0, shape)
        jitter = generator.normal(0, 1, (windows, 1))
        ours = reference + shift + (jitter - jitter.mean()) * spread
        values = {
            "loss": ours, "loss_all_rows": ours, "reference_loss": reference, "reference_loss_all_rows": reference,
            "kl": np.full(shape, kl) * generator.gamma(4.0, 0.25, (windows, 1)),
            "agree": generator.random(shape) < agree,
        }  # fmt: skip
        domains[name] = reduce_measures(values, np.ones(shape, bool), None)
    return Evaluation(
        step=step,
        protocol=Protocol(
            window_tokens=TARGETS + 1, remainder="drop", vocabulary_rows=10, all_rows=(10, 10), compute_dtype="float32"
        ),
        inputs=InputHashes(
            ours="a", reference="b", reference_padded_rows=None, held_out={}, tokenizer=None, ectype="0"
        ),
        overall=summarise(join_measures(list(domains.values()))),
        domains={name: domain_record(measured) for name, measured in domains.items()},
    )


def evaluations(**changes: float) -> dict[int, Evaluation]:
    """The same kind of evaluation at every landmark."""
    return {step: evaluation(step, **changes) for step in LANDMARKS}  # type: ignore[arg-type]


def log(*, noise: float = 0.0, seed: int = 0, shift: float = 0.0, steps: int = STEPS) -> TrainingLog:
    """A falling loss, moved by `shift` and by Gaussian noise of deviation `noise` at every step."""
    number = np.arange(1, steps + 1)
    jitter = np.random.default_rng(seed).normal(0, 1, steps) * noise
    return TrainingLog(
        steps=number, loss=7 * number**-0.1 + jitter + shift, grad_norm=1 + 1 / number + jitter, skipped=number == 40
    )


def twins(size: float, count: int = 3, chaotic_from: int | None = None) -> Noise:
    """Noise of twins that differ by `size` nats, and by a thousandth of it before the step `chaotic_from`."""
    generator = np.random.default_rng(7)
    scale = np.full(STEPS, size)
    if chaotic_from is not None:
        scale[: chaotic_from - 1] *= 1e-6
    loss = [tuple((generator.normal(0, 1, STEPS) * scale).tolist()) for _ in range(count)]
    landmarks = {}
    for step in LANDMARKS:
        factor = size if chaotic_from is None or step >= chaotic_from else size * 1e-6
        shifts = tuple((generator.normal(0, factor, count)).tolist())
        landmarks[step] = LandmarkNoise(
            held_out_loss=shifts,
            held_out_loss_domains=dict.fromkeys(DOMAINS, shifts),
            kl_mean=tuple((factor * generator.gamma(50, 0.02, count)).tolist()),
            top1_agreement=tuple((1 - factor * generator.gamma(50, 0.02, count)).tolist()),
        )
    return Noise(
        recipe_hash="h", perturbation=1e-6, twins=count, steps=tuple(range(1, STEPS + 1)), loss=tuple(loss),
        grad_norm=tuple(loss), landmarks=landmarks,
    )  # fmt: skip


def grounds(noise: Noise | None = None, *, float32: bool = True, horizon: int | None = None) -> Grounds:
    """Grounds of a short run."""
    return Grounds(
        floors=load_floors(), float32=float32, noise=noise, noise_is_of_this_run=True, horizon_step=horizon,
        duration_steps=STEPS, resamples=300,
    )  # fmt: skip
