"""The chunked loss against torch in float64 and against its own unchunked form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.loss import next_token_targets, summed_loss


def draw(tokens=37, width=16, rows=50):
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((tokens, width)).astype(np.float32)
    head = rng.standard_normal((rows, width)).astype(np.float32)
    return hidden, head, rng.integers(0, rows, tokens).astype(np.int32), (rng.random(tokens) < 0.7).astype(np.float32)


def loss_and_gradients(chunk, z_loss=1e-2):
    hidden, head, targets, mask = draw()
    function = jax.value_and_grad(lambda h, w: summed_loss(h, w, targets, mask, z_loss, chunk), (0, 1), has_aux=True)
    return function(jnp.asarray(hidden), jnp.asarray(head))


@pytest.mark.reference
@pytest.mark.parametrize("chunk", [5, 8, 37, 100])
def test_equals_torch_in_float64(chunk):
    torch = pytest.importorskip("torch")
    hidden, head, targets, mask = draw()
    h, w = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (hidden, head))
    logits, keep = h @ w.T, torch.tensor(mask, dtype=torch.float64)
    entropy = torch.nn.functional.cross_entropy(logits, torch.tensor(targets).long(), reduction="none")
    cross = (entropy * keep).sum()
    total = cross + 1e-2 * (logits.logsumexp(-1) ** 2 * keep).sum()
    total.backward()
    (ours_total, (ours_cross, ours_z)), (grad_hidden, grad_head) = loss_and_gradients(chunk)
    assert float(ours_total) == pytest.approx(total.item(), rel=1e-6)
    assert float(ours_cross) == pytest.approx(cross.item(), rel=1e-6)
    assert float(ours_z) == pytest.approx((total - cross).item(), rel=1e-6)
    np.testing.assert_allclose(grad_hidden, h.grad.numpy(), atol=3e-6)
    np.testing.assert_allclose(grad_head, w.grad.numpy(), atol=3e-6)


def test_value_without_gradient_equals_value_with():
    hidden, head, targets, mask = draw()
    alone = summed_loss(jnp.asarray(hidden), jnp.asarray(head), targets, mask, 1e-2, 8)
    assert alone[0] == loss_and_gradients(8)[0][0]


def test_full_logits_are_never_held():
    tokens, width, rows, chunk = 4096, 16, 2048, 256
    shapes = [((tokens, width), "float32"), ((rows, width), "float32"), ((tokens,), "int32"), ((tokens,), "float32")]
    abstract = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    step = jax.jit(jax.grad(lambda h, w, t, m: summed_loss(h, w, t, m, 1e-5, chunk)[0], (0, 1)))
    temporary = step.lower(*abstract).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 6 * chunk * rows * 4 < tokens * rows * 4


def test_last_position_and_rejected_windows_have_no_target():
    tokens = jnp.arange(12, dtype=jnp.int32).reshape(3, 4)
    targets, mask = next_token_targets(tokens, jnp.asarray([True, False, True]))
    assert mask.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert targets[:, :-1].tolist() == tokens[:, 1:].tolist()
