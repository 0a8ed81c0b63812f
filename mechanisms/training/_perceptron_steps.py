"""Compiled training of one perceptron: forward, backward, clipping of each example's gradient, and the update.

Batches are stored in columns, padded to whole vectors: the input of a layer has shape (width, batch). Weights stay in
torch's flat vector: (outputs, inputs) of each layer, then its bias. Arithmetic is float32.

Products are summed in the order of the shared index by fused multiply-adds, and sums run over the examples of one batch
only. So a model's numbers do not depend on other models. All compiled code is in this file, because numba's cache
does not notice changes in other files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

Perceptron = tuple[Ints, bool, bool, np.float32]
"""Widths of inputs, hidden layers and logits; tanh (else ReLU) between layers; targets are log-likelihoods of noisy
labels (ALIBI), else probabilities; constant that ALIBI adds to a probability before its logarithm."""
Rule = tuple[bool, bool, np.float32, np.float32]
"""Adam (else SGD); Nesterov's form of momentum; momentum; weight decay."""

_F = TypeVar("_F", bound=Callable[..., object])

LANES = 32  # floats of a vector; rows of V and C are padded to a multiple of it
TILE = 16  # rows and columns that are transposed together

_FLOAT, _INDEX, _PLACE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FUSED, _FUSED_TYPE = f"llvm.fma.v{LANES}f32", ir.FunctionType(_VECTOR, [_VECTOR] * 3)

_ZERO, _ONE = np.float32(0), np.float32(1)
_TENTH, _SLOW, _THOUSANDTH, _TINY = np.float32(0.1), np.float32(0.999), np.float32(0.001), np.float32(1e-8)
_SATURATED = np.float32(7.90531110763549805)
_ABOVE = tuple(
    np.float32(coefficient)
    for coefficient in (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    )
)
_BELOW = tuple(
    np.float32(coefficient)
    for coefficient in (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
)
_LARGEST = np.float32(np.finfo(np.float32).max)


def _compiled(function: _F) -> _F:
    return cast(_F, njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})(function))


def _inlined(function: _F) -> _F:
    """Compile `function` as an inlined part of its caller, never on its own.

    Otherwise a process that compiles would call the separate copy, and a process that loads the cache the copy within
    the caller. Reorderable sums differ between the two in their last bits.
    """
    return cast(_F, njit(inline="always", error_model="numpy", fastmath={"contract", "reassoc"})(function))


def _block(rows: int) -> Any:
    """C[:rows, :LANES] += S[:rows] V, from addresses; strides and depth count elements."""

    @intrinsic
    def block(
        context: Any, c: Any, c_row: Any, s: Any, s_row: Any, s_column: Any, v: Any, v_row: Any, depth: Any
    ) -> Any:
        def generate(target: Any, code: Any, signature: Any, arguments: Any) -> Any:
            c, c_row, s, s_row, s_column, v, v_row, depth = arguments
            pointer = _FLOAT.as_pointer()
            c, s, v = (code.inttoptr(address, pointer) for address in (c, s, v))
            fused = code.module.globals.get(_FUSED) or ir.Function(code.module, _FUSED_TYPE, _FUSED)

            def vector(base: Any, offset: Any) -> Any:
                return code.bitcast(code.gep(base, [offset]), _VECTOR.as_pointer())

            where = [vector(c, code.mul(_INDEX(row), c_row)) for row in range(rows)]
            first = [code.load(place, align=4) for place in where]
            starts = [code.mul(_INDEX(row), s_row) for row in range(rows)]
            entry = code.block
            head, body, end = (code.append_basic_block(name) for name in ("head", "body", "done"))
            code.branch(head)
            code.position_at_end(head)
            step = code.phi(_INDEX)
            step.add_incoming(_INDEX(0), entry)
            sums = [code.phi(_VECTOR) for _ in range(rows)]
            for row in range(rows):
                sums[row].add_incoming(first[row], entry)
            code.cbranch(code.icmp_signed("<", step, depth), body, end)
            code.position_at_end(body)
            loaded = code.load(vector(v, code.mul(step, v_row)), align=4)
            along = code.mul(step, s_column)
            everywhere = ir.Constant(ir.VectorType(_PLACE, LANES), [0] * LANES)
            for row in range(rows):
                factor = code.load(code.gep(s, [code.add(starts[row], along)]))
                single = code.insert_element(ir.Constant(_VECTOR, ir.Undefined), factor, _PLACE(0))
                spread = code.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), everywhere)
                sums[row].add_incoming(code.call(fused, [spread, loaded, sums[row]]), body)
            step.add_incoming(code.add(step, _INDEX(1)), body)
            code.branch(head)
            code.position_at_end(end)
            for row in range(rows):
                code.store(sums[row], where[row], align=4)
            return target.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return block


_EIGHT, _PAIR, _SINGLE = (_block(rows) for rows in (8, 2, 1))


@_compiled
def add_product(c: Floats, s: Floats, s_row: int, s_column: int, v: Floats, rows: int, depth: int, width: int) -> None:
    """c[m, n] += sum_k s[m s_row + k s_column] v[k, n] for m < rows, k < depth and n < width rounded up to vectors.

    All are contiguous; c has at least `rows` rows and v at least `depth`, both padded; s has one axis.
    """
    c_row, v_row = c.shape[1], v.shape[1]
    c_first, s_first, v_first = c.ctypes.data, s.ctypes.data, v.ctypes.data
    for n in range(0, width, LANES):
        v_here, m = v_first + 4 * n, 0
        while m < rows:
            c_here, s_here = c_first + 4 * (m * c_row + n), s_first + 4 * m * s_row
            if m + 8 <= rows:
                _EIGHT(c_here, c_row, s_here, s_row, s_column, v_here, v_row, depth)
                m += 8
            elif m + 2 <= rows:
                _PAIR(c_here, c_row, s_here, s_row, s_column, v_here, v_row, depth)
                m += 2
            else:
                _SINGLE(c_here, c_row, s_here, s_row, s_column, v_here, v_row, depth)
                m += 1


@_inlined
def _padded(width: int) -> int:
    return -(-width // LANES) * LANES


@_inlined
def _allocate(widths: Ints, batch: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return padded arrays of one step: layer inputs by rows and by columns, errors by columns, a gradient."""
    layers, many = len(widths) - 1, _padded(batch)
    widest = most = 0
    for layer in range(layers):
        widest = max(widest, _padded(widths[layer]), _padded(widths[layer + 1]))
        most = max(most, _padded(widths[layer]) * widths[layer + 1])
    by_row = np.zeros((layers, many, widest), np.float32)
    by_column = np.zeros((layers + 1, widest, many), np.float32)
    errors = np.zeros((layers, widest, many), np.float32)
    return by_row, by_column, errors, np.zeros(most, np.float32)


@_inlined
def _transpose(source: Floats, target: Floats, rows: int, columns: int) -> None:
    """Set target[k, i] = source[i, k] in whole blocks, at least for i < rows and k < columns."""
    for top in range(0, rows, TILE):
        for column in range(0, columns, TILE):
            block, transposed = (
                source[top : top + TILE, column : column + TILE],
                target[column : column + TILE, top : top + TILE],
            )
            for k in range(TILE):
                for i in range(TILE):
                    transposed[k, i] = block[i, k]


@_inlined
def _tanh(x: np.float32) -> np.float32:
    """Compute tanh to a few units in the last place, without branches so that loops vectorise; Eigen's `ptanh`."""
    x = min(max(x, -_SATURATED), _SATURATED)
    square = x * x
    above = below = _ZERO
    for coefficient in _ABOVE:
        above = above * square + coefficient
    for coefficient in _BELOW:
        below = below * square + coefficient
    return x * above / below


@_inlined
def _forward(parameters: Floats, widths: Ints, tanh: bool, size: int, by_row: Floats, by_column: Floats) -> None:
    """Compute the inputs of each layer, and the logits last, from the inputs by rows."""
    layers = len(widths) - 1
    padded = _padded(size)
    begin = 0
    for layer in range(layers):
        inputs, outputs = widths[layer], widths[layer + 1]
        if layer == 0:
            _transpose(by_row[0], by_column[0], size, inputs)
        after = by_column[layer + 1]
        bias = parameters[begin + outputs * inputs : begin + outputs * inputs + outputs]
        for o in range(outputs):
            for i in range(padded):
                after[o, i] = bias[o]
        add_product(after, parameters[begin:], inputs, 1, by_column[layer], outputs, inputs, padded)
        if layer < layers - 1:
            for o in range(outputs):
                if tanh:
                    for i in range(padded):
                        after[o, i] = _tanh(after[o, i])
                else:
                    for i in range(padded):
                        after[o, i] = _ZERO if after[o, i] < _ZERO else after[o, i]
            _transpose(after, by_row[layer + 1], outputs, size)
        begin += outputs * (inputs + 1)


@_inlined
def _alibi_errors(
    floor: np.float32, logits: Floats, targets: Floats, size: int, losses: Floats, errors: Floats
) -> None:
    """Compute cross-entropy with the constant posterior q of each label, and its gradient p_k sum(w) - w_k.

    p is the model's prediction, w_k = q_k p_k / (p_k + floor).
    """
    classes = targets.shape[1]
    for i in range(size):
        most, top = logits[0, i], logits[0, i] + targets[i, 0]
        for k in range(1, classes):
            most, top = max(most, logits[k, i]), max(top, logits[k, i] + targets[i, k])
        total = mass = loss = moved = _ZERO
        for k in range(classes):
            total += math.exp(logits[k, i] - most)
            mass += math.exp(logits[k, i] + targets[i, k] - top)
        for k in range(classes):
            predicted = math.exp(logits[k, i] - most) / total
            posterior = math.exp(logits[k, i] + targets[i, k] - top) / mass
            loss -= posterior * math.log(predicted + floor)
            errors[k, i] = posterior * predicted / (predicted + floor)
            moved += errors[k, i]
        losses[i] = loss
        for k in range(classes):
            errors[k, i] = math.exp(logits[k, i] - most) / total * moved - errors[k, i]


@_inlined
def _logit_errors(
    alibi: bool, floor: np.float32, logits: Floats, targets: Floats, size: int, losses: Floats, errors: Floats
) -> None:
    """Compute the loss of each example and its gradient by the logits; `targets` (size, classes)."""
    if alibi:
        _alibi_errors(floor, logits, targets, size, losses, errors)
        return
    classes = targets.shape[1]
    for i in range(size):
        most = logits[0, i]
        for k in range(1, classes):
            most = max(most, logits[k, i])
        total = mass = target_loss = _ZERO
        for k in range(classes):
            above = logits[k, i] - most
            power = math.exp(above)
            errors[k, i] = power
            total += power
            mass += targets[i, k]
            target_loss += targets[i, k] * above
        losses[i] = mass * math.log(total) - target_loss
        share = mass / total
        for k in range(classes):
            errors[k, i] = errors[k, i] * share - targets[i, k]


@_inlined
def _backward(parameters: Floats, widths: Ints, tanh: bool, size: int, by_column: Floats, errors: Floats) -> None:
    """Compute the gradients by each layer's outputs from those by the logits."""
    padded = _padded(size)
    begin = len(parameters)
    for layer in range(len(widths) - 2, 0, -1):
        inputs, outputs = widths[layer], widths[layer + 1]
        begin -= outputs * (inputs + 1)
        before, activated = errors[layer - 1], by_column[layer]
        before[:inputs, :padded] = _ZERO
        add_product(before, parameters[begin:], 1, inputs, errors[layer], inputs, outputs, padded)
        for k in range(inputs):
            if tanh:
                for i in range(padded):
                    before[k, i] *= _ONE - activated[k, i] * activated[k, i]
            else:
                for i in range(padded):
                    before[k, i] *= _ONE if activated[k, i] > _ZERO else _ZERO


@_inlined
def _clip(widths: Ints, clip: np.float32, floor: np.float32, size: int, by_column: Floats, errors: Floats) -> None:
    """Scale each example's errors by min(1, clip / (norm of its gradient + floor))."""
    # An example's gradient of a layer is error x input, with squared norm |error|^2 (|input|^2 + 1); 1 for the bias.
    squares = np.zeros(size, np.float32)
    for layer in range(len(widths) - 1):
        zeros, right = np.zeros(size, np.float32), np.ones(size, np.float32)
        error, activations = errors[layer], by_column[layer]
        for o in range(widths[layer + 1]):
            for i in range(size):
                zeros[i] += error[o, i] * error[o, i]
        for k in range(widths[layer]):
            for i in range(size):
                right[i] += activations[k, i] * activations[k, i]
        for i in range(size):
            squares[i] += zeros[i] * right[i]
    for i in range(size):
        squares[i] = min(_ONE, clip / (math.sqrt(squares[i]) + floor))
    for layer in range(len(widths) - 1):
        error = errors[layer]
        for o in range(widths[layer + 1]):
            for i in range(size):
                error[o, i] *= squares[i]


@_inlined
def _collect(widths: Ints, size: int, by_row: Floats, errors: Floats, scratch: Floats, out: Floats) -> None:
    """Sum the gradients of weights and biases over the batch into `out` (P,), in the order of the parameters."""
    place = 0
    for layer in range(len(widths) - 1):
        inputs, outputs, error = widths[layer], widths[layer + 1], errors[layer]
        gradient = scratch[: outputs * _padded(inputs)].reshape((outputs, _padded(inputs)))
        gradient[:] = _ZERO
        add_product(gradient, error.reshape(-1), error.shape[1], 1, by_row[layer], outputs, size, inputs)
        for o in range(outputs):
            line = out[place : place + inputs]
            for k in range(inputs):
                line[k] = gradient[o, k]
            place += inputs
        bias = out[place : place + outputs]
        for o in range(outputs):
            total = _ZERO
            for i in range(size):
                total += error[o, i]
            bias[o] = total
        place += outputs


@_compiled
def clipped_sums(
    parameters: Floats,  # (A, P)
    network: Perceptron,
    features: Floats,  # (n, inputs)
    rows: Ints,  # rows of the batches in `features`, model after model
    targets: Floats,  # targets of the same examples, (rows, classes)
    ends: Ints,  # end of each model's batch, (A,)
    clip: np.float32,  # maximum norm of one example's gradient
    least: np.float32,  # added to a norm before dividing by it
    out: Floats,  # (A, P)
) -> None:
    """Write the sum of each model's clipped gradients to `out`; 0 for an empty batch."""
    widths, tanh, alibi, floor = network
    most = begin = 0
    for end in ends:
        most, begin = max(most, end - begin), end
    by_row, by_column, errors, scratch = _allocate(widths, most)
    losses, last = np.zeros(most, np.float32), len(widths) - 2
    begin = 0
    for model in range(len(ends)):
        size = ends[model] - begin
        for i in range(size):
            by_row[0, i, : widths[0]] = features[rows[begin + i]]
        _forward(parameters[model], widths, tanh, size, by_row, by_column)
        _logit_errors(alibi, floor, by_column[last + 1], targets[begin : begin + size], size, losses, errors[last])
        _backward(parameters[model], widths, tanh, size, by_column, errors)
        _clip(widths, clip, least, size, by_column, errors)
        _collect(widths, size, by_row, errors, scratch, out[model])
        begin = ends[model]


@_inlined
def _update(
    rule: Rule, parameters: Floats, gradient: Floats, first: Floats, second: Floats, step: int, rate: np.float32
) -> None:
    """Update one model as torch.optim does; moments are (P,), or (0,) if unused; overwrites `gradient`."""
    adam, nesterov, momentum, decay = rule
    if decay > _ZERO:
        for p in range(len(parameters)):
            gradient[p] += decay * parameters[p]
    if adam:
        short, long = np.float32(1 - 0.9**step), np.float32(1 - 0.999**step)
        for p in range(len(parameters)):
            first[p] += _TENTH * (gradient[p] - first[p])
            second[p] = _SLOW * second[p] + _THOUSANDTH * (gradient[p] * gradient[p])
            parameters[p] -= rate * (first[p] / short / (math.sqrt(second[p] / long) + _TINY))
    elif len(first) == 0:
        for p in range(len(parameters)):
            parameters[p] -= rate * gradient[p]
    else:
        for p in range(len(parameters)):
            first[p] = momentum * first[p] + gradient[p]
            moved = gradient[p] + momentum * first[p] if nesterov else first[p]
            parameters[p] -= rate * moved


@_compiled
def update_all(
    rule: Rule, parameters: Floats, gradient: Floats, first: Floats, second: Floats, steps: Floats, rate: np.float32
) -> None:
    """Run `_update` for each model and increment `steps` (A, 1); other arrays are (A, P), unused moments (A, 0)."""
    for model in range(len(parameters)):
        steps[model, 0] += _ONE
        step = int(steps[model, 0])
        _update(rule, parameters[model], gradient[model], first[model], second[model], step, rate)


@_compiled
def train_epoch(
    parameters: Floats,  # (P,)
    first: Floats,  # moment of the optimizer, (P,), or (0,) if unused
    second: Floats,  # likewise
    steps: int,  # steps before this epoch
    network: Perceptron,
    features: Floats,  # (n, inputs)
    rows: Ints,  # in the order of the epoch, (count,)
    targets: Floats,  # in the same order, (count, classes)
    scaling: Floats,  # mean and deviation of each feature, (2, inputs), or (0, inputs)
    rates: Floats,  # learning rate of each step
    batch: int,  # examples per step
    rule: Rule,
) -> np.float32:
    """Train one model for an epoch, in place; returns the sum of batch mean losses."""
    widths, tanh, alibi, floor = network
    most = min(batch, len(rows))
    by_row, by_column, errors, scratch = _allocate(widths, most)
    losses, last = np.zeros(most, np.float32), len(widths) - 2
    gradient = np.empty_like(parameters)
    total = _ZERO
    for step in range(len(rates)):
        begin = step * batch
        size = min(batch, len(rows) - begin)
        for i in range(size):
            by_row[0, i, : widths[0]] = features[rows[begin + i]]
        if len(scaling):
            _scale(by_row[0], scaling, size)
        _forward(parameters, widths, tanh, size, by_row, by_column)
        _logit_errors(alibi, floor, by_column[last + 1], targets[begin : begin + size], size, losses, errors[last])
        share = _ONE / np.float32(size)
        for i in range(size):
            total += losses[i] * share
            for k in range(widths[-1]):
                errors[last, k, i] *= share
        _backward(parameters, widths, tanh, size, by_column, errors)
        _collect(widths, size, by_row, errors, scratch, gradient)
        _update(rule, parameters, gradient, first, second, steps + step + 1, rates[step])
    return total


@_inlined
def _scale(by_row: Floats, scaling: Floats, size: int) -> None:
    """Apply (x - mean) / deviation as `inputs.scale_inputs`: NaN becomes 0, infinity the largest number."""
    for i in range(size):
        for k in range(scaling.shape[1]):
            x = (by_row[i, k] - scaling[0, k]) / scaling[1, k]
            by_row[i, k] = _ZERO if math.isnan(x) else min(max(x, -_LARGEST), _LARGEST)
