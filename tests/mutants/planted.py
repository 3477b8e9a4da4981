"""Bugs that would break the guarantee, each as a replacement of source text, and the ordinary tests that must notice it.

Each is a mistake that has been made somewhere, or one that a line of the present source could become. ``old`` occurs once
in its file (a quick test sees to that), so a change of the source changes this list with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which occurs once in ``file`` (below src/groupclip), by ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Args:
        name: of the bug.
        promise: what a run with this bug claims and doesn't keep.
        edits: how it is planted.
        tests: the test files, or tests in them, one of which must fail. All of them are of the default suite.
    """

    name: str
    promise: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def mutant(name: str, promise: str, tests: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, promise, tuple(Edit(*edit) for edit in edits), tuple(tests.split()))


CLIPPING = (
    mutant(
        "views taken from any dimension",
        "the rows that are clipped as one are of one sample",
        "tests/engine/test_views.py",
        ("engine/views.py", "if len(shapes) != 1 or next(iter(shapes))[1:] != (self.count,):", "if len(shapes) != 1:"),
    ),
    mutant(
        "views clipped one by one",
        "the views of one sample are clipped as one",
        "tests/engine/test_views.py",
        ("engine/attach.py", "several = Views(views)", "several = Views(views if views < 1 else 1)"),
    ),
    mutant(
        "one layer unclipped",
        "one sample moves a group by at most R_m",
        "tests/engine/test_backward.py::test_equals_the_loop_in_float64",
        (
            "autograd/clipped.py",
            "parts.pop(0).add_to(totals, factors)",
            "part = parts.pop(0)\n"
            "        bias = any(slot.name.endswith('bias') for slot in part.keys)\n"
            "        part.add_to(totals, torch.ones_like(factors) if bias else factors)",
        ),
    ),
    mutant(
        "the batch's mean clipped",
        "every sample's gradient is clipped, and not their mean",
        "tests/engine/test_backward.py::test_equals_the_loop_in_float64",
        (
            "autograd/clipped.py",
            "return _weighed(squares, rooms, len(grads), dtypes, sorts, clip, threshold, scale)",
            "weights = torch.full_like(squares, 1 / max(1, len(squares)))\n"
            "    mean = torch.stack([g.weighted_sum(weights).square().sum() for g in grads]).sum().double().expand_as(squares)\n"
            "    norms, _ = _weighed(squares, rooms, len(grads), dtypes, sorts, clip, threshold, scale)\n"
            "    return norms, _weighed(mean, rooms, len(grads), dtypes, sorts, clip, threshold, scale)[1]",
        ),
    ),
    mutant(
        "tied weight normed twice",
        "the uses of one weight are one gradient",
        "tests/rules/test_tied.py",
        (
            "persample/combine.py",
            "return Tied(join_lookups(lookups), join_outers(outers))",
            "return Apart([join_lookups(lookups), join_outers(outers)])",
        ),
    ),
    mutant(
        "reused layer normed twice",
        "the uses of one weight are one gradient",
        "tests/rules/test_tied.py",
        ("persample/combine.py", "return join_outers(outers)", "return Apart(outers)  # type: ignore"),
    ),
    mutant(
        "no guard against samples that aren't finite",
        "a sample whose gradient is nan or inf adds zero",
        "tests/engine/test_engine.py",
        ("autograd/clipped.py", "if not bool(finite.all()):  # zero times", "if False:  # zero times"),
    ),
    mutant(
        "no such guard where gradients are formed in blocks",
        "a sample whose gradient is nan or inf adds zero",
        "tests/persample/test_streamed.py",
        ("autograd/clipped.py", "if not bool(finite.all()):  # as in the other sums", "if False:"),
    ),
    mutant(
        "a block weighed by other samples' factors",
        "every sample's gradient is clipped by its own norm",
        "tests/persample/test_streamed.py",
        (
            "autograd/clipped.py",
            "found.append((norms, factors))",
            "found.append((norms, factors))\n        factors = found[0][1][: len(norms)]",
        ),
    ),
    mutant(
        "a gradient that is formed again may be longer",
        "what a sample adds is no longer than its norm says",
        "tests/persample/test_rounded.py",
        ("persample/streamed.py", "factors[which] * torch.where(now > stated, stated / now, 1.0).sqrt()", "factors[which]"),
    ),
    mutant(
        "another training of the same plan taken for an earlier round",
        "a statement on final weights tells what earlier engines spent on them",
        "tests/engine/test_budget.py",
        ("engine/earlier.py", "self._ledger.lasts and e.entry == self._ledger.entry", "self._ledger.lasts"),
    ),
    mutant(
        "negative Gram norm clamped",
        "norms are right where positions cancel",
        "tests/persample/test_cancelling.py",
        ("persample/cancelling.py", "if bool(doubtful.any()):", "squares.clamp_(min=0.0)\n        if False:"),
    ),
    mutant(
        "no room for rounding",
        "R_m bounds what is really added, rounding included",
        "tests/clipping/test_functions.py",
        ("clipping/functions.py", "posinf=0.0) * (1.0 - _ROUNDING[dtype])", "posinf=0.0)"),
    ),
    mutant(
        "a token's opposite terms added one by one",
        "R_m bounds what is really added, rounding included",
        "tests/persample/test_bounds.py",
        (
            "persample/lookup.py",
            "self.g = sums.index_add_(0, first.flatten(), self.g.flatten(0, 1).to(wide)).view(self.g.shape)",
            "sums.index_add_(0, first.flatten(), self.g.flatten(0, 1).to(wide))\n"
            "            self._square_norms, self.g = square_sums(sums.view(self.g.shape)), self.g.to(wide)",
        ),
        (
            "persample/lookup.py",
            "            self._square_norms = square_sums(self.g)",
            "            self._square_norms = square_sums(self.g) if self._square_norms is None else self._square_norms",
        ),
    ),
    mutant(
        "no guard against pixels that cancel",
        "R_m bounds what is really added, rounding included",
        "tests/persample/test_bounds.py",
        ("persample/cancelling.py", "            self._cancelling = doubtful\n", ""),
    ),
    mutant(
        "norm 0 with factor 1",
        "a sample without a norm adds nothing",
        "tests/clipping/test_functions.py",
        (
            "clipping/functions.py",
            "torch.nan_to_num(norms / longest, nan=0.0)",
            "torch.where(norms > 0, norms / longest, 1.0)",
        ),
    ),
    mutant(
        "squares that underflow",
        "norms aren't too small, however small the gradient is",
        "tests/persample/test_bounds.py",
        ("autograd/clipped.py", "return norms, shortened(factors, norms, room * scale)", "return norms, factors"),
    ),
    mutant(
        "squares in half precision",
        "norms are of float32 or better, whatever the dtype of the gradients",
        "tests/persample/test_norms_half.py",
        ("persample/norms.py", "        return rows.to(wide).square().sum", "        return rows.square().to(wide).sum"),
    ),
    mutant(
        "long rows' squares in half precision",
        "norms are of float32 or better, whatever the dtype of the gradients",
        "tests/persample/test_norms_half.py",
        ("persample/norms.py", "vector_norm(stretches, dim=2, dtype=wide)", "vector_norm(stretches, dim=2)"),
        ("persample/norms.py", ".square().sum(dim=1)\n    most", ".square().sum(dim=1).to(wide)\n    most"),
    ),
    mutant(
        "Gram matrices in half precision",
        "norms are of float32 or better, whatever the dtype of the gradients",
        "tests/persample/test_norms_half.py",
        ("persample/norms.py", "    a, g = a.to(wide), g.to(wide)\n", ""),
    ),
    mutant(
        "samples summed before they are pulled back",
        "R_m bounds what is really added, rounding included",
        "tests/persample/test_bounds.py",
        (
            "persample/pulled.py",
            "            return self._pulled_one_by_one.weighted_sum(factors)\n",
            "            total = self.upstream.weighted_sum(factors).view(self.derived.shape)\n"
            "            return self._pull(total.to(self.derived.dtype), batched=False).to(total.dtype)\n",
        ),
    ),
    mutant(
        "a user's clip function believed",
        "R_m holds whatever the clip function does",
        "tests/clipping/test_functions.py",
        ("clipping/functions.py", "capped = torch.minimum(raw, norms.reciprocal() * threshold).clamp(min=0.0)", "capped = raw"),
    ),
    mutant(
        "batch statistics allowed",
        "a sample's gradient depends on that sample alone",
        "tests/engine/test_statistics.py",
        (
            "engine/checks.py",
            "isinstance(module, _BatchNorm) and (module.training",
            "isinstance(module, _BatchNorm) and (False",
        ),
    ),
    mutant(
        "buffers filled from samples published",
        "nothing of a sample is published without noise",
        "tests/alone/test_published.py",
        ("alone/published.py", "if self._guarded and name not in module._non_persistent_buffers_set:", "if False:"),
    ),
    mutant(
        "writes past autograd's version counter unseen",
        "nothing of a sample is published without noise",
        "tests/alone/test_published.py",
        (
            "alone/published.py",
            "zip(left, self._left, self._values, strict=True):\n            if x is not y and not _equal(x, y):",
            "zip(left, self._left, self._values, strict=True):\n            if False:",
        ),
    ),
    mutant(
        "gradients changed by hand accepted",
        "the noise fits what it is added to",
        "tests/engine/test_step.py tests/engine/test_custody.py",
        ("engine/custody.py", "        if changed:\n", "        if False:\n"),
    ),
    mutant(
        "products summed in half precision",
        "R_m bounds what is really added, rounding included",
        "tests/autograd/test_slot.py",
        (
            "persample/base.py",
            "return a.to(wide) @ b.to(wide)",
            "low = min(a.dtype, b.dtype, key=lambda d: torch.finfo(d).bits)\n    return (a.to(low) @ b.to(low)).to(wide)",
        ),
    ),
    mutant(
        "sums in half precision before the noise",
        "R_m bounds what is really added, rounding included",
        "tests/autograd/test_slot.py",
        ("autograd/slot.py", "total if self.keeps_wide else None", "None"),
    ),
    mutant(
        "passes on weights that were moved without noise",
        "a sample's gradient doesn't depend on the others of its batch",
        "tests/engine/test_unmoved.py",
        ("engine/unmoved.py", "return self._differing(self._first, now)", "return []"),
    ),
    mutant(
        "weights moved by hand before the step",
        "weights move by what has noise alone",
        "tests/engine/test_unmoved.py",
        ("engine/unmoved.py", "return moved if moved and (", "return moved if False and ("),
    ),
    mutant(
        "a batch that was given up kept beside p.grad",
        "what zero_grad gives up is released by no later step",
        "tests/engine/test_custody.py",
        (
            "autograd/slot.py",
            "if self.wide is None or left is None or left.released or left.grad() is not grad or left.version != grad._version:",
            "if self.wide is None:",
        ),
        ("engine/custody.py", "        for slot, _ in sums:\n            slot.left = slot.wide = None\n", ""),
    ),
    mutant(
        "thresholds loaded into a logical batch",
        "the noise fits what it is added to",
        "tests/engine/test_provenance.py",
        ("engine/state.py", "        if self.step.under_way:\n", "        if False:\n"),
    ),
)

ALONE = (
    mutant(
        "rules run inside the transform",
        "a sample's gradient is that of the sample alone",
        "tests/alone/test_run.py",
        (
            "autograd/vmap.py",
            "while functorch.peek_interpreter_stack() is not None:\n            levels.append",
            "while False:\n            levels.append",
        ),
    ),
    mutant(
        "the samples' dimension not moved to the front",
        "a sample's gradient is that of the sample alone",
        "tests/alone/test_run.py",
        ("autograd/vmap.py", "return value if at == 0 else value.movedim(at, 0)", "return value"),
    ),
    mutant(
        "parts joined in the order in which they ran",
        "loss i is that of sample i",
        "tests/autograd/test_reads.py",
        ("alone/outputs.py", "    order[rows] = torch.arange(len(rows))\n", "    order[:] = torch.arange(len(rows))\n"),
    ),
    mutant(
        "a part's gradients taken for those of its first samples",
        "the uses of a weight by one sample are one gradient",
        "tests/alone/test_run.py",
        ("autograd/cells.py", "chosen = [places[row] for row in rows]", "chosen = sorted(places.values())[: len(rows)]"),
    ),
    mutant(
        "norms of a part put in other samples' places",
        "norms are those of the samples that they are said to be of",
        "tests/autograd/test_reads.py",
        (
            "autograd/cells.py",
            "index_copy(0, rows.to(values.device), values)",
            "index_copy(0, rows.flip(0).to(values.device), values)",
        ),
    ),
    mutant(
        "a second call of a sample clipped apart",
        "the uses of a weight by one sample are one gradient",
        "tests/autograd/test_own.py",
        ("autograd/gate.py", "                found = self._own_of.get(key)\n", "                found = None\n"),
    ),
    mutant(
        "a sample by itself clipped apart from what it did beside others",
        "the uses of a weight by one sample are one gradient",
        "tests/autograd/test_own.py",
        ("autograd/gate.py", "        if not part.batch or self._is_beside_others(part.row):", "        if not part.batch:"),
    ),
    mutant(
        "rows of a table forgotten where a sample runs by itself",
        "the uses of a weight by one sample are one gradient",
        "tests/autograd/test_own.py",
        ("autograd/own.py", "uses, self._booked = self._booked, {}", "uses = dict[Slot, list[PerSample]]()"),
    ),
    mutant(
        "norms of samples by themselves in the order in which they came",
        "norms are those of the samples that they are said to be of",
        "tests/autograd/test_own.py",
        ("autograd/cells.py", "[part.row for part, _ in singles]", "list(range(len(singles)))"),
    ),
    mutant(
        "a budget charged by two processes at one moment",
        "what is spent is counted",
        "tests/privacy/test_budget.py",
        ("durable.py", "            fcntl.flock(self._descriptor, fcntl.LOCK_EX)", "            pass"),
    ),
    mutant(
        "a budget's lock that forked children have in common",
        "what is spent is counted",
        "tests/privacy/test_budget.py",
        ("durable.py", "if os.getpid() != self._process:", "if False:"),
    ),
    mutant(
        "entries of other neighbours in a budget's file",
        "figures of different neighbours aren't composed",
        "tests/privacy/test_budget.py",
        ("privacy/entries.py", "!= (adjacency, unit):", "!= (entry.mechanism.adjacency, entry.mechanism.unit):"),
    ),
    mutant(
        "an engine that doesn't charge its budget",
        "what is spent is counted",
        "tests/engine/test_budget.py",
        ("privacy/ledger.py", "charged = self._reservation.charge(sampling, anew=anew)", "charged = self.steps + 1"),
    ),
    mutant(
        "steps of an open training not set aside in its budget",
        "what is spent is counted",
        "tests/privacy/test_budget.py",
        ("privacy/entries.py", "return self.planned if self.is_open else self.taken", "return self.taken"),
    ),
    mutant(
        "a part that was trained before and is frozen now",
        "what is spent is counted",
        "tests/engine/test_budget.py",
        (
            "engine/engine.py",
            "earlier_trainings(model.parameters())",
            "earlier_trainings(p for p in model.parameters() if p.requires_grad)",
        ),
    ),
    mutant(
        "groupclip train that charges its budget nothing",
        "what is spent is counted",
        "tests/run/test_drawing.py::test_a_run_spends_of_its_budget_what_its_record_says",
        ("run/build.py", "        budget=reservation,\n", ""),
    ),
    mutant(
        "a step that the journal alone counts",
        "what is spent is counted",
        "tests/run/test_drawing.py::test_a_full_disk_of_the_budget_stops_the_run_and_loses_nothing",
        ("run/drawing.py", "for _ in range(budget.taken(name), charged):", "for _ in range(0):"),
    ),
    mutant(
        "a search that is not counted taken for none",
        "a statement says what isn't in its figure",
        "tests/statement/test_asked.py",
        ("statement/covered.py", 'if told.search == "none":', 'if told.search in ("none", "not counted"):'),
    ),
    mutant(
        "what isn't known taken for no",
        "a statement says what isn't in its figure",
        "tests/statement/test_asked.py",
        ("statement/asked.py", '    if not told:\n        return f"{UNKNOWN}."', '    if not told:\n        return "No."'),
    ),
    mutant(
        "a curve of one step less",
        "each delta is an upper bound",
        "tests/statement/test_asked.py",
        ("privacy/curve.py", "composed(step, rounds, grid)", "composed(step, rounds - 1, grid)"),
    ),
    mutant(
        "a round that forgets those before it",
        "what is spent is counted",
        "tests/engine/test_budget.py",
        ("privacy/ledger.py", "        self._steps.update(reservation.before)\n", ""),
    ),
    mutant(
        "another noise multiplier in a later round",
        "epsilon is of the noise that was added",
        "tests/privacy/test_budget.py",
        ("privacy/budget.py", "elif known[0].mechanism != mechanism:", "elif known[0].mechanism.steps != mechanism.steps:"),
    ),
    mutant(
        "two processes in one round",
        "what is spent is counted",
        "tests/engine/test_budget.py",
        ("privacy/ledger.py", "if self.lasts and charged != self.steps + 1:", "if False:"),
    ),
    mutant(
        "clients' updates unclipped",
        "one client moves a group by at most R_m",
        "tests/federated/test_updates.py",
        ("federated/updates.py", "{name: part * factor if factor", "{name: part if factor"),
    ),
    mutant(
        "an update of one that isn't finite",
        "one client moves a group by at most R_m",
        "tests/federated/test_updates.py",
        ("federated/updates.py", "part * factor if factor else torch.zeros_like(part) for", "part * factor for"),
    ),
    mutant(
        "a client that answers twice in a round",
        "one client moves a group by at most R_m",
        "tests/federated/test_average.py",
        ("federated/average.py", "        self._open.discard(client)\n", ""),
    ),
    mutant(
        "a client that answers several times at once",
        "one client moves a group by at most R_m",
        "tests/federated/test_average.py",
        (
            "federated/average.py",
            "            self._check_client(client, begun)  # again: it may have answered, or the round ended, since\n",
            "",
        ),
    ),
    mutant(
        "an update of one round that lands in the next",
        "one client moves a group by at most R_m",
        "tests/federated/test_average.py",
        ("federated/average.py", "self._open is None or self._round != begun or client", "self._open is None or client"),
    ),
    mutant(
        "clients taken in turn",
        "chance alone chooses who takes part",
        "tests/federated/test_average.py",
        (
            "federated/average.py",
            "draw(len(clients), plan.sample_rate, key=self._key, step=self.ledger.steps) if clients else ()",
            "sorted((self.ledger.steps + n) % len(clients) for n in range(int(plan.expected_batch_size))) if clients else ()",
        ),
    ),
    mutant(
        "clients chosen again until they suit",
        "chance alone chooses who takes part",
        "tests/federated/test_average.py",
        ("federated/average.py", "        if self._open is not None:\n", "        if False:\n"),
    ),
    mutant(
        "a round of which all answered isn't counted",
        "what is spent is counted",
        "tests/federated/test_average.py",
        (
            "federated/average.py",
            '        self.ledger.record("groupclip")',
            '        _ = self._open and self.ledger.record("groupclip")',
        ),
    ),
    mutant(
        "clients' noise of the smallest group",
        "the noise of all groups amounts to the plan's",
        "tests/federated/test_average.py",
        ("federated/average.py", "stds[self.partition.group_of(name)]", "min(stds.values())"),
    ),
    mutant(
        "a buffer carries one sample to the next",
        "no sample sees what another wrote",
        "tests/alone/test_carried.py",
        ("alone/published.py", "        self._carried.put_back()\n", "        pass\n"),
    ),
    mutant(
        "what a pass left is computed with by the next",
        "a sample acts on no other's gradient, in its own step or a later one",
        "tests/alone/test_remembered.py",
        ("alone/run.py", "self._remembered.add(left)", "self._remembered.add([])"),
    ),
    mutant(
        "what a sample wrote outlives the pass",
        "a sample acts on no other's gradient, in its own step or a later one",
        "tests/alone/test_carried.py",
        ("alone/carried.py", "if i in self._of_samples or self._samples == 1:", "if self._samples == 0:"),
    ),
    mutant(
        "what a pass that failed wrote kept for the next",
        "a sample acts on no other's gradient, in its own step or a later one",
        "tests/alone/test_carried.py",
        ("alone/published.py", "            self.put_back()\n            if self._kept", "            if self._kept"),
    ),
    mutant(
        "what a failed pass clipped kept for the next",
        "one sample moves a group by at most R_m",
        "tests/autograd/test_own.py",
        ("engine/engine.py", "            group.drop_gate()\n\n    @contextmanager", "            pass\n\n    @contextmanager"),
    ),
    mutant(
        "all samples take the path of the first",
        "a value that is read is the sample's own",
        "tests/autograd/test_reads.py",
        (
            "autograd/one_by_one.py",
            "    if any(key != keys[0] for key in keys):\n        raise Differ(keys)\n    return values[0]",
            "    return values[0]",
        ),
    ),
    mutant(
        "an answer that the model's code does without",
        "samples that take different paths go apart, whatever errors the model's code catches",
        "tests/autograd/test_reads.py::test_code_that_goes_on_after_an_error_is_answered_all_the_same",
        ("autograd/reads.py", "        self._raise_stop()\n        if self.part.copies", "        if self.part.copies"),
    ),
    mutant(
        "rows for all samples that may be of the samples",
        "no sample is in sight of another, or the call is refused",
        "tests/alone/test_inputs.py::test_rows_for_all_samples_that_may_be_of_the_samples_are_refused",
        ("alone/inputs.py", "if self._guarded and not self._lengths[place]:", "if self._guarded and self._lengths[place]:"),
    ),
    mutant(
        "several rows for each sample in sight of all",
        "no sample is in sight of another, or the call is refused",
        "tests/alone/test_inputs.py::test_several_rows_for_each_sample_are_refused_when_a_second_batch_shows_them",
        ("alone/inputs.py", "self._multiples.check(place, length, batch)", "self._multiples.check(place, 1, batch)"),
    ),
    mutant(
        "what an object holds isn't looked at",
        "no sample is in sight of another, or the call is refused",
        "tests/alone/test_inputs.py::test_what_has_an_entry_for_each_sample_and_is_hidden_is_refused",
        ("alone/sequences.py", "_DEEPEST = 3", "_DEEPEST = 0"),
    ),
    mutant(
        "an input that a given-up run has changed",
        "a sample's gradient is that of the sample as it was given",
        "tests/alone/test_inputs.py::test_inputs_changed_in_place_by_a_model_that_must_run_again_are_refused",
        ("alone/inputs.py", "t._version for t in tensors if", "t._version for t in () if"),
    ),
    mutant(
        "an input that all samples write into",
        "no sample sees what another wrote",
        "tests/alone/test_carried.py::test_no_sample_finds_what_another_wrote_into_an_input_that_all_get",
        ("alone/run.py", "published.watch_closely(inputs.shared())", "published.watch_closely()"),
    ),
    mutant(
        "tables that mix samples beside the forward pass",
        "what reads or writes a table across samples is refused, wherever it is used",
        "tests/autograd/test_dispatch.py::test_nor_beside_the_forward_pass",
        ("autograd/dispatch.py", "        if check is not None:\n", "        if check is not None and tape.part is not None:\n"),
    ),
    mutant(
        "gradients changed behind torch's back",
        "nothing changes a clipped sum before it has noise",
        "tests/engine/test_custody.py::test_numbers_that_are_changed_behind_torchs_back_are_not_stepped",
        ("engine/custody.py", "self.changed.append(((now - then).abs() > _ROUNDING * (now + then)).any())", "del then"),
    ),
    mutant(
        "gradients changed in place by a hook",
        "nothing changes a clipped sum before it has noise",
        "tests/engine/test_custody.py::test_a_hook_that_changes_a_gradient_in_place",
        (
            "autograd/slot.py",
            "if ours and (grad._version != self._version or",
            "if grad is None and (grad._version != self._version or",
        ),
    ),
    mutant(
        "weights moved as often as there are paths",
        "what is released doesn't tell how many paths the samples took",
        "tests/alone/test_weights.py",
        ("alone/weights.py", "if param._version == version and not self._differs(param):", "if param._version == version:"),
    ),
    mutant(
        "paths of chance taken together",
        "a sample's random numbers don't hang on the other samples",
        "tests/autograd/test_chance.py",
        ("autograd/reads.py", "if marked and func in _DECIDES and decides(", "if marked and func in () and decides("),
    ),
    mutant(
        "saved tensors that come back changed",
        "no code of the model's is given two samples, but what gives back what it was given",
        "tests/engine/test_contexts.py::test_saved_tensors_that_come_back_changed_are_refused_where_noise_is_to_come",
        ("autograd/saved.py", "if _told(x) != held.told:", "if x.shape != held.told[0]:"),
    ),
    mutant(
        "a class's own call that sees the batch",
        "no code of the model's is given two samples",
        "tests/engine/test_attach.py::test_a_class_with_a_call_of_its_own_is_refused",
        ("engine/attach.py", "    check_class(model)\n", ""),
    ),
    mutant(
        "an operation without a batching rule run on the first sample",
        "a sample's gradient is that of the sample alone",
        "tests/autograd/test_reads.py",
        (
            "autograd/one_by_one.py",
            "physical[id(v)][i] if id(v) in physical else v",
            "physical[id(v)][0] if id(v) in physical else v",
        ),
    ),
    mutant(
        "a tensor of parameters that a change in place makes longer",
        "a gradient's length is that of what is added",
        "tests/autograd/test_derived.py::test_changes_in_place_by_any_name_are_refused",
        ("autograd/derived.py", "if tensor._version != version:", "if tensor._version < version:"),
    ),
    mutant(
        "the length of a gradient's imaginary part",
        "a gradient's length is that of what is added",
        "tests/autograd/test_derived.py::test_of_a_complex_gradient_the_real_part_is_the_parameters",
        ("autograd/derived.py", "real = isometric and not shadowed.is_complex()", "real = isometric"),
    ),
    mutant(
        "what a tensor of samples says of autograd",
        "a sample takes the path that it takes alone",
        "tests/autograd/test_facts.py::test_what_hangs_on_a_fact",
        ("autograd/facts.py", "    return _asked_below(part, func, args, kwargs)\n\n\n_HERE", "    raise NestedLevel\n\n\n_HERE"),
    ),
    mutant(
        "the memory of a copy in the place of the sample's",
        "a model computes under the engine what it computes without",
        "tests/autograd/test_facts.py::test_changes_of_memory",
        ("autograd/facts.py", "func(below, *args[1:], **kwargs), at", "func(below, *args[1:], **kwargs).clone(), at"),
    ),
    mutant(
        "a copy changed in the place of a view",
        "a model computes under the engine what it computes without",
        "tests/autograd/test_copies.py::test_a_view_that_is_changed",
        ("autograd/copies.py", "return bool(held) and (", "return not held and ("),
    ),
    mutant(
        "samples added up in a constant by an overload's name",
        "no sample sees what another wrote",
        "tests/autograd/test_one_by_one.py::test_samples_written_into_a_constant",
        ("autograd/operation.py", '.partition(".")[0]', '.partition("?")[0]'),
    ),
    mutant(
        "torch's wrong rules followed",
        "a sample's gradient is that of the sample alone",
        "tests/autograd/test_wrong_rules.py",
        ("autograd/reads.py", "**FACTS, **WRONG, **AT_ONCE", "**FACTS, **AT_ONCE"),
    ),
    mutant(
        "a parameter that thaws on the way and gets noise alone",
        "what is trained gets its clipped gradient, or the pass is refused",
        "tests/autograd/test_gate.py::test_a_parameter_that_thaws_after_its_group_was_opened_is_refused",
        ("autograd/gate.py", "if total is not None and not connected:", "if total is None and not connected:"),
    ),
    mutant(
        "one constant for all samples that write into it",
        "no sample sees what another wrote",
        "tests/autograd/test_reads.py",
        (
            "autograd/reads.py",
            "return self.part.logical(self.part.each(result).clone())",
            "return self.part.logical(self.part.each(result))",
        ),
    ),
    mutant(
        "a copy of a view written to instead of the view",
        "a model computes under the engine what it computes without",
        "tests/autograd/test_reads.py",
        (
            "autograd/reads.py",
            "_memory(t) for t in tensors_in((args, kwargs)) if not self.part.holds(t)",
            "_memory(t) for t in ()",
        ),
    ),
    mutant(
        "a sample's text shows all samples",
        "no sample is in sight of another",
        "tests/autograd/test_reads.py",
        (
            "autograd/reads.py",
            "dict.fromkeys((Tensor.tolist, Tensor.__repr__), _read_all)",
            "dict.fromkeys((Tensor.tolist,), _read_all)",
        ),
    ),
    mutant(
        "gradients beside the forward pass credited to other losses",
        "beside the forward pass a gradient is the sample's whose loss it is of",
        "tests/alone/test_run.py",
        ("autograd/beside.py", "for loss in losses.unbind()", "for loss in losses.roll(1).unbind()"),
    ),
    mutant(
        "infinities beside the forward pass accepted",
        "one sample's infinities silence nobody else",
        "tests/autograd/test_gate.py",
        ("autograd/beside.py", "if not stacked.is_meta and not bool(torch.isfinite(stacked).all()):", "if False:"),
    ),
    mutant(
        "a parameter spread over the samples without its tap",
        "no use of a parameter is missed",
        "tests/alone/test_run.py",
        (
            "autograd/dispatch.py",
            "return tap(part, [part.each(value)], [], [targets(operand)], _instantiated)[0]",
            "return part.each(value)",
        ),
    ),
    mutant(
        "a part given the rows of other samples",
        "a part's gradients are of the samples that they are booked for",
        "tests/autograd/test_reads.py",
        (
            "alone/inputs.py",
            "rows = value[part.rows]",
            "rows = value[part.rows - 1]",
        ),
    ),
    mutant(
        "what samples leave on modules stays the last one's",
        "loss i is that of sample i",
        "tests/alone/test_attributes.py",
        ("alone/published.py", "if isinstance(value, Tensor) and self._is_left(", "if False and self._is_left("),
    ),
    mutant(
        "an interrupted pass leaves its samples on modules",
        "a failed call leaves the model as it was",
        "tests/alone/test_attributes.py",
        ("alone/published.py", "            if self._kept is not None:\n", "            if False:\n"),
    ),
    mutant(
        "features that a hook kept taken for all samples'",
        "loss i is that of sample i",
        "tests/alone/test_attributes.py",
        ("engine/backward.py", "            refuse_escaped(losses)\n", "                    pass\n"),
    ),
    mutant(
        "a constant of one path taken for all samples'",
        "loss i is that of sample i",
        "tests/alone/test_attributes.py",
        ("alone/outputs.py", "and all(same(found[0], f) for f in found):", "and True:"),
    ),
    mutant(
        "a number that the last path left taken for all samples'",
        "loss i is that of sample i",
        "tests/alone/test_attributes.py",
        ("alone/published.py", "if self._is_constant(key, parts):", "if all(isinstance(f, Constant) for _, f in having):"),
    ),
    mutant(
        "a path begins with what the path before left",
        "no sample is in sight of another",
        "tests/alone/test_attributes.py",
        (
            "alone/published.py",
            "            self._kept.put_back_if_moved()\n\n    def left_behind",
            "            pass\n\n    def left_behind",
        ),
    ),
    mutant(
        "what a sample left taken for nothing",
        "no sample is in sight of another",
        "tests/alone/test_attributes.py",
        (
            "alone/attributes.py",
            "            self._is_as_before = False\n            for name,",
            "            for name,",
        ),
    ),
    mutant(
        "a list with an entry for each sample given to every sample",
        "no sample is in sight of another",
        "tests/alone/test_inputs.py",
        ("alone/sequences.py", "                if other is None:\n", "                if True:\n"),
    ),
    mutant(
        "outputs taken to begin with the sample",
        "loss i is that of sample i",
        "tests/alone/test_attributes.py",
        ("alone/outputs.py", "0 if dims is None else dims[n]", "0"),
    ),
)

NOISE = (
    mutant(
        "noise by the group's own threshold",
        "noise is sigma times the length of (R_1 .. R_M); else too little by up to sqrt(M)",
        "tests/privacy/test_allocation.py tests/engine/test_noise.py",
        (
            "privacy/allocation.py",
            "return {group: sigma * total for group in thresholds}",
            "return {group: sigma * bound for group, bound in thresholds.items()}",
        ),
    ),
    mutant(
        "noise once a micro-batch",
        "noise is added once a logical step",
        "tests/engine/test_noise.py",
        (
            "engine/step.py",
            "        self._custody.check_landed()\n",
            "        for slot, grad, _ in self._custody.look():\n"
            "            if self._ledger is not None and grad is not None:\n"
            "                with torch.no_grad():\n"
            "                    self._noise.add_(grad, self._amounts.stds[slot.group.name])\n"
            "        self._custody.note()\n"
            "        self._custody.check_landed()\n",
        ),
    ),
    mutant(
        "noise once a group",
        "noise is added once, whatever the number of groups or processes",
        "tests/engine/test_noise.py",
        (
            "engine/step.py",
            "            add_noise(self._noise, [",
            "            for _ in stds:\n              add_noise(self._noise, [",
        ),
    ),
    mutant(
        "small parameters share one draw of noise",
        "every coordinate has noise of its own",
        "tests/noise/test_jointly.py tests/engine/test_noise.py",
        (
            "noise/jointly.py",
            "            noise.add_(together, std)\n",
            "            drawn = torch.zeros_like(together[: few[0].numel()])\n"
            "            noise.add_(drawn, std)\n"
            "            together += drawn.repeat(len(together) // max(1, len(drawn)) + 1)[: len(together)]\n",
        ),
    ),
    mutant(
        "small parameters beyond the first room without noise",
        "every coordinate has noise of its own",
        "tests/noise/test_jointly.py",
        ("packing.py", "    if few:\n        yield few\n", "    if few and left == room:\n        yield few\n"),
    ),
    mutant(
        "sums of small parameters are views of one",
        "a change of one parameter's gradient isn't taken for a change of another's",
        "tests/engine/test_custody.py tests/engine/test_plain.py",
        ("persample/small.py", "map(torch.clone, total.split(self.widths))", "total.split(self.widths)"),
    ),
    mutant(
        "noise on every rank",
        "noise is added once, whatever the number of groups or processes",
        "tests/distributed/test_ddp.py",
        (
            "distributed/release.py",
            "    summed = [\n",
            "    for bucket, joined in dealt:\n        make_private(joined, bucket.std)\n    summed = [\n",
        ),
        ("distributed/release.py", "            make_private(joined, bucket.std)\n    sent = [", "            pass\n    sent = ["),
    ),
    mutant(
        "one key of noise on all ranks",
        "every coordinate has noise of its own",
        "tests/distributed/test_ddp.py",
        ("engine/together.py", "        return noise\n", "        return SecureNoise(bytes(32))\n"),
    ),
    mutant(
        "the mean over ranks",
        "a step releases the sum over the samples of all processes",
        "tests/distributed/test_ddp.py",
        (
            "distributed/release.py",
            "        _finish(work)\n        if bucket",
            "        _finish(work)\n        joined.div_(ranks.size)\n        if bucket",
        ),
    ),
    mutant(
        "the divisor is one rank's expected batch size",
        "the divisor is the plan's expected batch size",
        "tests/distributed/test_ddp.py",
        (
            "engine/together.py",
            "            self._noise.add_(total, std)\n            total.div_(expected_batch_size)",
            "            self._noise.add_(total, std)\n            total.div_(expected_batch_size / self.ranks.size)",
        ),
    ),
    mutant(
        "the mean over ranks of what is cut",
        "a step releases the sum over the samples of all processes",
        "tests/distributed/test_fsdp.py",
        (
            "distributed/shards.py",
            "        torch.distributed.reduce_scatter_single(own, rows.view(-1), group=group)\n",
            "        torch.distributed.reduce_scatter_single(own, rows.view(-1), group=group)\n        own.div_(size)\n",
        ),
    ),
    mutant(
        "copies of a shard each with noise of their own",
        "noise is added once, whatever the number of groups or processes",
        "tests/distributed/test_fsdp.py",
        ("engine/together.py", "else slot.kept.peers\n", "else None\n"),
    ),
    mutant(
        "a gradient of a shard that autograd brings",
        "a trainable parameter is clipped and noised, or the run is refused",
        "tests/distributed/test_fsdp.py",
        (
            "autograd/sharded.py",
            "(self.param.register_hook(self.witness), self.moved.register_hook(refuse))",
            "(self.param.register_hook(self.witness),)",
        ),
    ),
    mutant(
        "a change of a shard's gradient unseen",
        "nothing comes between the clipped sum and the noise",
        "tests/distributed/test_fsdp.py",
        ("engine/custody.py", "                    stands = kept.is_as_noted\n", "                    pass\n"),
    ),
    mutant(
        "a group on several devices",
        "a trainable parameter is clipped and noised, or the run is refused",
        "tests/engine/test_devices.py",
        ("engine/attach.py", "    check_devices(partition_, named)\n", ""),
    ),
    mutant(
        "a pipeline's schedule calls an attached stage",
        "a trainable parameter is clipped and noised, or the run is refused",
        "tests/distributed/test_stages.py",
        ("engine/forward.py", "Callable[[], None] = check_no_schedule", "Callable[[], None] = int"),
    ),
    mutant(
        "the noise of a stage counts the thresholds of this stage alone",
        "the noise covers all that one sample moves",
        "tests/distributed/test_pipeline.py",
        ("engine/attach.py", "dict(stages.everywhere.sizes)", "dict(stages.own.sizes)"),
    ),
    mutant(
        "rows that fill a micro-batch up have a gradient",
        "one sample moves a group by at most R_m",
        "tests/distributed/test_pipeline.py",
        (
            "engine/passes.py",
            "        return torch.where(real, losses, torch.zeros_like(losses))\n",
            "        return losses if real.any() else losses\n",
        ),
        ("engine/passes.py", "            if any(map(bool, self._filled)):\n", "            if False:\n"),
    ),
    mutant(
        "rows that fill a micro-batch up are counted",
        "a step counts as groupclip's on exactly its batch",
        "tests/distributed/test_pipeline.py",
        ("engine/passes.py", "self._report(group, norms[:real])", "self._report(group, norms)"),
    ),
    mutant(
        "micro-batches of a schedule share their gates",
        "one sample moves a group by at most R_m",
        "tests/distributed/test_pipeline.py",
        (
            "engine/passes.py",
            "        for group in groups:\n            group.gate = None\n",
            "",
        ),
    ),
    mutant(
        "a stage sends less than the next one has memory for",
        "no sample is in sight of another",
        "tests/distributed/test_pipeline.py",
        ("engine/passes.py", "            check_sent(found, self.stage._stage_meta.outputs)\n", "            pass\n"),
    ),
    mutant(
        "samples beside the rows that the next stage clips",
        "no sample is in sight of another",
        "tests/distributed/test_pipeline.py::test_what_goes_from_stage_to_stage_has_the_sample_in_front",
        ("engine/passes.py", "(outputs=not stage.is_last)", "(outputs=False)"),
    ),
    mutant(
        "what a schedule doesn't cut is seen by every sample of a stage",
        "no sample is in sight of another",
        "tests/distributed/test_pipeline.py",
        ("engine/schedule.py", "        _check_cut((args, kwargs))\n", ""),
    ),
    mutant(
        "stages of a pipeline with other samples than each other",
        "no sample is in sight of another",
        "tests/distributed/test_pipeline.py",
        ("engine/schedule.py", "each != told[0]", "False"),
    ),
    mutant(
        "a state that is refused counts all the same",
        "a failed call leaves the ledger as it was",
        "tests/privacy/test_ledger.py tests/distributed/test_refused.py",
        (
            "privacy/ledger.py",
            "        self._begun_in(state)  # raises where it doesn't fit\n",
            "        self._steps = steps\n",
        ),
    ),
    mutant(
        "every rank sets the steps aside in the budget for itself",
        "a budget is charged once for a step of all processes",
        "tests/distributed/test_budget.py",
        (
            "engine/attach.py",
            "reserved(budget, mechanism) if shared is None or shared.charges else None",
            "reserved(budget, mechanism)",
        ),
    ),
    mutant(
        "a rank begins batches of another step than the others",
        "one draw over the whole data set, dealt to all ranks",
        "tests/distributed/test_refused.py",
        ("sampling/batches.py", "            unanimous(together, lambda: None, self._facts, BATCHES)\n", ""),
    ),
    mutant(
        "a rank loads another state than the others",
        "one ledger on all ranks",
        "tests/distributed/test_refused.py",
        ("engine/state.py", "lambda: {\"the state\": digest(state)}", "dict"),
    ),
    mutant(
        "a step that another rank refused",
        "a step is taken by all processes or by none",
        "tests/distributed/test_ddp.py",
        ("distributed/agreement.py", "        if other[\"error\"]:\n", "        if False:\n"),
    ),
    mutant(
        "each rank draws from all samples",
        "a sample is in the batch of one process",
        "tests/distributed/test_ddp.py",
        ("sampling/dealt.py", "plan(drawn[rank :: ranks.size])", "plan(drawn)"),
    ),
    mutant(
        "each rank moves the thresholds by its own samples",
        "a step is taken by all processes or by none",
        "tests/distributed/test_others.py",
        ("engine/step.py", "        self._amounts.shared_by(self._together)\n", ""),
    ),
    mutant(
        "a part of a batch left out on another rank",
        "no epsilon is told for batches that chance alone didn't choose",
        "tests/distributed/test_ddp.py",
        ("engine/together.py", "return own and all(other == told for other in everybody)", "return own"),
    ),
    mutant(
        "no noise where nothing took part",
        "a step tells nothing of which layers, or whether any samples, took part",
        "tests/engine/test_noise.py",
        (
            "engine/step.py",
            "                grad = slot.kept.grad = torch.zeros_like(slot.kept.data)\n                slot.wide = None\n",
            "                continue\n",
        ),
    ),
    mutant(
        "division by the actual batch",
        "the divisor is the plan's expected batch size",
        "tests/engine/test_noise.py",
        (
            "engine/step.py",
            "torch._foreach_div_([total for _, _, total in sums], expected_batch_size)",
            "torch._foreach_div_([total for _, _, total in sums], float(max(1, max(self.samples.counts.values(), default=1))))",
        ),
    ),
    mutant(
        "noise stream reused",
        "no noise is ever added twice",
        "tests/noise/test_sources.py",
        (
            "noise/keystream.py",
            "self._cipher.update_into(zeros[: len(piece)], piece)",
            'piece[:] = vars(self).setdefault("_first", self._cipher.update(_ZEROS))[: len(piece)]',
        ),
    ),
    mutant(
        "half-precision noise",
        "noise is drawn and added in float64",
        "tests/noise/test_sources.py",
        (
            "noise/boxmuller.py",
            "self.normals(target.size, std).reshape(target.shape)",
            "self.normals(target.size, std).reshape(target.shape).astype(np.float16)",
        ),
        (
            "noise/boxmuller.py",
            "noise = self.normals(piece.numel(), std).view(piece.shape)",
            "noise = self.normals(piece.numel(), std).view(piece.shape).bfloat16()",
        ),
    ),
    mutant(
        "half-precision noise on float32 alone",
        "noise is as precise as what it is added to",
        "tests/noise/test_sources.py",
        (
            "noise/single.py",
            "self.normals(target.size, std).reshape(target.shape)",
            "self.normals(target.size, std).reshape(target.shape).astype(np.float16)",
        ),
    ),
    mutant(
        "float32 noise from 32 bits alone",
        "no coordinate is left without noise",
        "tests/noise/test_single.py",
        ("noise/single.py", "_END = 1 << 22", "_END = 0"),
    ),
    mutant(
        "one set of further bits for all chunks",
        "no noise is ever added twice",
        "tests/noise/test_single.py",
        ("noise/single.py", "Keystream(self.words[:_KEY].tobytes(), ", "Keystream(bytes(KEY_BYTES), "),
    ),
    mutant(
        "noise of torch's global generator",
        "no framework's seed can fix the noise",
        "tests/engine/test_noise.py tests/noise/test_sources.py::test_global_generators_are_neither_read_nor_written",
        (
            "noise/boxmuller.py",
            "self.normals(target.size, std).reshape(target.shape)",
            "torch.randn(target.shape, dtype=torch.float64).numpy() * std",
        ),
        (
            "noise/boxmuller.py",
            "noise = self.normals(piece.numel(), std).view(piece.shape)",
            "noise = torch.randn(piece.shape, dtype=torch.float64) * std",
        ),
        (
            "noise/single.py",
            "self.normals(target.size, std).reshape(target.shape)",
            "torch.randn(target.shape).numpy() * std",
        ),
    ),
    mutant(
        "noise with thin tails",
        "no output is possible under one data set and impossible under its neighbour",
        "tests/noise/test_sources_tails.py",
        (
            "noise/boxmuller.py",
            "np.multiply(radius, 2.0**-63, out=radius)",
            "np.maximum(radius * 2.0**-63, 2.0**-24, out=radius)",
        ),
        (
            "noise/boxmuller.py",
            "radius.abs_().mul_(2.0**-63)",
            "radius.abs_().mul_(2.0**-63).clamp_(min=2.0**-24)",
        ),
    ),
    mutant(
        "float32 noise with thin tails",
        "no output is possible under one data set and impossible under its neighbour",
        "tests/noise/test_sources_tails.py",
        (
            "noise/single.py",
            "small = (np.minimum(u, left) + 0.5) * 2.0**-63",
            "small = np.maximum((np.minimum(u, left) + 0.5) * 2.0**-63, 2.0**-24)",
        ),
    ),
    mutant(
        "a seed's noise called secure",
        "no epsilon is claimed for noise that can be subtracted",
        "tests/noise/test_sources.py",
        ("noise/sources.py", "    secure: bool = False\n", "    secure: bool = True\n"),
    ),
    mutant(
        "rounding to a grid unpaid",
        "hardened noise covers what the grid adds to the distance of neighbours",
        "tests/clipping/test_budget.py",
        ("clipping/budget.py", "planned_for(sigma, coordinates) if hardened else sigma", "sigma"),
    ),
    mutant(
        "moving thresholds unpaid",
        "the counts that move thresholds are paid for out of the same plan",
        "tests/clipping/test_adaptive.py tests/clipping/test_budget.py",
        ("clipping/adaptive.py", "return sigma / math.sqrt(1 - self.share)", "return sigma"),
    ),
    mutant(
        "counts that aren't centred",
        "a sample moves a count by half at most",
        "tests/clipping/test_adaptive.py",
        ("clipping/adaptive.py", "torch.where(norms <= threshold, 0.5, -0.5)", "torch.where(norms <= threshold, 1.0, 0.0)"),
    ),
)

ACCOUNTING = (
    mutant(
        "what was spent on the weights before untold",
        "a statement on final weights tells what earlier engines spent on them",
        "tests/engine/test_earlier.py",
        ("engine/engine.py", "earlier=() if self._training is None else self._training.before,", "earlier=(),"),
    ),
    mutant(
        "wrong q in the ledger",
        "the rate that is accounted is the rate at which samples are drawn",
        "tests/privacy/test_mechanism.py",
        ("privacy/mechanism.py", "            rate=self.part_rate,", "            rate=self.part_rate * 0.99,"),
    ),
    mutant(
        "epsilon of half the steps",
        "epsilon is of every released step",
        "tests/privacy/test_ledger.py",
        (
            "privacy/ledger.py",
            "return self.mechanism.spent(delta=delta, steps=self.steps, rounds=self.rounds)",
            "return self.mechanism.spent(delta=delta, steps=(self.steps + 1) // 2)",
        ),
    ),
    mutant(
        "empty batches not counted",
        "a step on an empty batch is a release",
        "tests/engine/test_noise.py",
        (
            "engine/step.py",
            '            self._ledger.record("groupclip" if own else "user", anew=anew)',
            '            _ = self.samples.counts and self._ledger.record("groupclip" if own else "user", anew=anew)',
        ),
    ),
    mutant(
        "a step past the plan",
        "nothing is released past the plan",
        "tests/privacy/test_ledger.py",
        ("privacy/ledger.py", "if self.steps >= self.mechanism.steps:", "if self.steps > self.mechanism.steps:"),
    ),
    mutant(
        "replacing accounted like removing",
        "replace-one doubles the sensitivity",
        "tests/privacy/test_accounting_truth.py",
        (
            "privacy/sampled_step.py",
            'return self.sigma / 2 if self.adjacency == "replace-one" else self.sigma',
            "return self.sigma",
        ),
    ),
    mutant(
        "sampler of a fixed size",
        "every sample enters independently of the others",
        "tests/sampling/test_draws_law.py",
        (
            "sampling/draws.py",
            "np.flatnonzero(stream.words(count) < np.uint64(threshold))",
            "np.sort(np.argsort(stream.words(count))[: round(rate * count)])",
        ),
    ),
    mutant(
        "truncation that keeps the first",
        "who is left out of a batch that is too large is chosen uniformly",
        "tests/sampling/test_draws_law.py tests/sampling/test_draws.py",
        ("sampling/draws.py", "            return indices[chosen]", "            return indices[:most]"),
    ),
    mutant(
        "one user written in two ways counted twice",
        "what a user adds is bounded, whatever way the user's name is written",
        "tests/sampling/test_names.py",
        ("sampling/names.py", "if first != name:", "if False:"),
    ),
    mutant(
        "workers that are copies of the main process",
        "the key of sampling stays in the process that draws",
        "tests/sampling/test_workers.py",
        ("sampling/workers.py", 'multiprocessing_context="spawn"', 'multiprocessing_context="fork"'),
    ),
    mutant(
        "hidden copies trained on",
        "one record counts once",
        "tests/tasks/test_imagefolder.py",
        ("tasks/finding.py", 'if name.startswith("."):', "if False:"),
    ),
    mutant(
        "training images held out",
        "what is measured without noise is measured on no training record",
        "tests/tasks/test_imagefolder.py",
        ("tasks/imagefolder.py", "    if shared:\n", "    if False:\n"),
    ),
    mutant(
        "filling that counts",
        "what fills a padded batch up adds nothing",
        "tests/sampling/test_draws.py",
        ("sampling/claims.py", "if acting > batch.acting:", "if False:"),
    ),
    mutant(
        "a second step on one batch vouched for",
        "epsilon is for batches that chance alone chose",
        "tests/engine/test_budget.py",
        ("engine/step.py", "            self._owner.claim()  # only now", "            # only now"),
    ),
    mutant(
        "half a batch vouched for",
        "a statement says groupclip's sampling only for steps on whole batches of it",
        "tests/sampling/test_claims.py",
        (
            "sampling/claims.py",
            "self.handed_out == self.units == units",
            "self.handed_out == self.units",
        ),
    ),
    mutant(
        "every batch vouched for",
        "a statement says groupclip's sampling only for steps on whole batches of it",
        "tests/engine/test_state.py",
        ("engine/step.py", '"groupclip" if own else "user"', '"groupclip"'),
    ),
    mutant(
        "zero_grad between micro-batches vouched for",
        "a statement says groupclip's sampling only for steps on whole batches of it",
        "tests/engine/test_custody.py",
        ("engine/custody.py", "        if not cleared or not self._noise_to_come:\n", "        if True:\n"),
    ),
    mutant(
        "batches left out vouched for",
        "a statement says groupclip's sampling only where every batch that was drawn has a step",
        "tests/sampling/test_claims.py",
        ("sampling/claims.py", "return self._position(batch) > self._behind(owner)", "return False"),
    ),
    mutant(
        "a sampler begun anew vouched for",
        "a statement says groupclip's sampling only where every batch that was drawn has a step, whichever iterator drew it",
        "tests/sampling/test_claims.py",
        ("sampling/claims.py", "return bool(in_turn) and not left", "return bool(in_turn)"),
    ),
    mutant(
        "a state loaded after a batch was given up vouched for",
        "a statement says groupclip's sampling only where every batch that was drawn has a step, whichever engine it was for",
        "tests/sampling/test_claims.py",
        ("engine/step.py", "            self._owner.resumed_at = steps\n", ""),
    ),
    mutant(
        "a micro-batch twice vouched for",
        "a statement says groupclip's sampling only for steps on the samples that were drawn, each once",
        "tests/sampling/test_claims.py",
        ("sampling/marks.py", "return Likeness.OTHER", "return Likeness.SAME"),
    ),
    mutant(
        "the noise of a given key resumed",
        "no noise is ever added twice",
        "tests/engine/test_provenance.py",
        ("engine/state.py", "if saved > self.ledger.steps and vouched_for", "if False and vouched_for"),
    ),
    mutant(
        "a subclass's noise called groupclip's",
        "the statement names noise that groupclip can't answer for",
        "tests/engine/test_provenance.py",
        (
            "engine/provenance.py",
            "if type(noise) not in (SecureNoise, InsecureNoise, HardenedNoise):",
            "if not isinstance(noise, (SecureNoise, InsecureNoise, HardenedNoise)):",
        ),
    ),
    mutant(
        "sampling that nobody vouches for",
        "no epsilon is claimed for batches that groupclip didn't draw, unless somebody vouches for them",
        "tests/privacy/test_ledger.py",
        ("privacy/ledger.py", 'if self._steps["user"] and not sampling_vouched_by_user:', "if False:"),
    ),
    mutant(
        "a search for the price of a run",
        "the best of several runs is paid for",
        "tests/privacy/test_selection.py",
        (
            "privacy/accounting.py",
            "epsilon = float(rdp.compute_epsilon(orders, repeated, delta)[0])",
            "epsilon = float(rdp.compute_epsilon(orders, divergences, delta)[0])",
        ),
    ),
    mutant(
        "guesses without the part of delta",
        "an audit accuses a sound run as rarely as it says",
        "tests/auditing/test_guesses.py",
        ("auditing/guesses.py", "above + canaries * delta * tail / right", "above"),
    ),
    mutant(
        "less noise than planned stated",
        "a record is refused where the noise that was added is less than the plan's",
        "tests/statement/test_record.py",
        ("statement/record.py", "if not realised >= planned * (1 - ROUNDING):", "if False:"),
    ),
    mutant(
        "epsilon rounded down",
        "the printed figure is never better than the proven one",
        "tests/statement/test_record.py",
        (
            "privacy/figures.py",
            "rounded = math.ceil(epsilon / unit - 1e-9) * unit",
            "rounded = math.floor(epsilon / unit) * unit",
        ),
    ),
)

CORRELATED = (
    mutant(
        "coins of one's own in a one-run audit",
        "an audit's bound is for canaries that are in or out by fair coins",
        "tests/auditing/test_run.py",
        ("auditing/canaries.py", "        if not drawn:", "        if not drawn and not len(coins):"),
        ("auditing/canaries.py", "        del self._drawn[drawn[0]]", "        del self._drawn[:1]"),
    ),
    mutant(
        "the best of several verdicts",
        "an audit's guesses are fixed before anybody looks at scores",
        "tests/auditing/test_run.py",
        ("auditing/canaries.py", "        del self._drawn[drawn[0]]\n", ""),
    ),
    mutant(
        "a budget that counts one of its trainings",
        "what is spent on one data set is composed",
        "tests/auditing/test_run.py tests/privacy/test_budget.py",
        ("privacy/entries.py", "for e in entries if e.mechanism and not", "for e in entries[:1] if e.mechanism and not"),
    ),
    mutant(
        "a band of the factorisation left out",
        "noise is correlated as the accounting says",
        "tests/noise/test_correlated.py tests/engine/test_factorised.py",
        ("noise/correlated.py", "oldest.sub_(earlier, alpha=share)", "oldest.sub_(earlier, alpha=share * (earlier is kept[0]))"),
    ),
    mutant(
        "a column longer than one",
        "one sample in one step moves C G by its threshold at most",
        "tests/privacy/test_toeplitz.py",
        ("privacy/toeplitz.py", "for entry in column / np.sqrt(column @ column))", "for entry in column)"),
    ),
    mutant(
        "bands accounted at the rate of one",
        "the rate that is accounted is the rate at which a part's samples are drawn",
        "tests/privacy/test_bands.py",
        ("privacy/mechanism.py", "return self.band_count * self.expected_batch_size", "return self.expected_batch_size"),
    ),
    mutant(
        "a round that wasn't finished isn't counted",
        "epsilon is of every released step",
        "tests/privacy/test_bands.py",
        ("privacy/mechanism.py", "-(-self._taken(steps) // self.band_count)", "self._taken(steps) // self.band_count"),
    ),
    mutant(
        "the data dealt anew in every step",
        "a sample's steps are b apart",
        "tests/sampling/test_draws_cyclic.py",
        (
            "sampling/draws.py",
            "parts_of(mechanism, key=key) if parts is None else parts",
            "parts_of(mechanism, key=bytes([step % 256]) * 32)",
        ),
    ),
    mutant(
        "noise begun anew inside a process isn't in its journal",
        "a crash loses no round",
        "tests/privacy/test_stretches.py",
        ("privacy/ledger.py", "if self._hear is not None and begun != self._begun:", "if self._hear is not None and not begun:"),
    ),
    mutant(
        "correlated noise goes on across iterators",
        "a sample's steps are b apart",
        "tests/engine/test_factorised.py",
        (
            "engine/factorised.py",
            "goes_on = self._taken == (batch.run, batch.step - 1) and",
            "goes_on = self._taken is not None and",
        ),
    ),
    mutant(
        "correlated noise narrower than the sums",
        "no bit of a sum is released without noise",
        "tests/engine/test_factorised.py",
        ("engine/factorised.py", "not goes_on or not self._noise.fits(_tensors(slots))", "not goes_on"),
    ),
    mutant(
        "a run that goes on past its plan's rounds",
        "a run spends no more than the epsilon it was given",
        "tests/run/test_correlated.py",
        ("run/loop.py", "for step in itertools.islice(taken, self.last - self.ledger.steps):", "for step in taken:"),
    ),
    mutant(
        "another training's state over steps of one's own",
        "epsilon is of every released step",
        "tests/engine/test_state.py",
        ("engine/state.py", "if self.step.released and", "if not self.step.training and"),
    ),
    mutant(
        "noise that is begun anew costs nothing",
        "a resumed run pays for a factorisation of its own",
        "tests/privacy/test_stretches.py tests/engine/test_factorised.py",
        ("privacy/stretches.py", "starts = bands > 1 and (anew or steps == 0)", "starts = bands > 1 and steps == 0"),
    ),
    mutant(
        "batches of one's own with correlated noise",
        "a sample's steps are b apart",
        "tests/engine/test_factorised.py",
        ("engine/step.py", "kept.begins(claimed, self._slots, self._ledger)", "self._ledger.steps == 0"),
    ),
    mutant(
        "correlated noise under thresholds that move",
        "noise that cancels over steps is of one size",
        "tests/engine/test_factorised.py",
        ("engine/factorised.py", "    if amounts.moves:\n", "    if amounts.moves and several:\n"),
    ),
    mutant(
        "steps lost in a crash counted as one stretch",
        "a resumed run pays for every factorisation that may have been begun",
        "tests/privacy/test_stretches.py",
        ("privacy/ledger.py", "*range(max(counted, told), ends)}", "max(counted, told)} - {ends}"),
    ),
)

RUNS = (
    mutant(
        "threshold changed after the plan",
        "clipping, noise and statement are made from one plan, which doesn't change",
        "tests/engine/test_state.py",
        (
            "engine/engine.py",
            "ReadOnly(self._amounts.thresholds)",
            "self._amounts.thresholds",
        ),
    ),
    mutant(
        "facts of the run replaced",
        "clipping, noise and statement are made from one plan, which doesn't change",
        "tests/engine/test_state.py",
        ("engine/engine.py", "if name in _FACTS and name in self.__dict__:", "if False:"),
    ),
    mutant(
        "un-noised gradient logged",
        "everything that is logged has noise in it",
        "tests/run/test_leaks.py",
        (
            "run/steps.py",
            '                self.doing = "updating"\n',
            "                from .metrics import noisy_norms\n\n"
            '                self.doing, self.plain = "updating", noisy_norms(self._engine)\n',
        ),
        (
            "run/loop.py",
            '"noisy_gradient_norm": noisy_norms(self.trainer.engine),',
            '"noisy_gradient_norm": self._steps.plain,',
        ),
    ),
    mutant(
        "largest norm of a sample logged",
        "everything that is logged has noise in it",
        "tests/run/test_leaks.py",
        (
            "run/metrics.py",
            "norms[group] = norm if math.isfinite(norm) else None",
            "norms[group] = float(engine._looks.norms[group].max())",
        ),
    ),
    mutant(
        "un-noised norms that leave no mark",
        "the statement says whether un-noised statistics were looked at",
        "tests/engine/test_state.py",
        ("engine/looks.py", 'self.taken.add(" ".join(what.split()))', "pass"),
    ),
    mutant(
        "a seed's noise forgotten by a resume",
        "no epsilon is claimed for noise that can be subtracted",
        "tests/engine/test_state.py",
        ("engine/provenance.py", 'secure=self.secure and saved["secure"] is True', "secure=self.secure"),
    ),
    mutant(
        "resume that forgets steps",
        "a step whose result may have been seen stays charged",
        "tests/run/test_resume.py",
        (
            "run/resuming.py",
            "return checkpoint.charged_to(found.saved, charged,",
            "return checkpoint.charged_to(found.saved, 0,",
        ),
    ),
    mutant(
        "charged after the step",
        "a step is charged on the disk before it is taken",
        "tests/run/test_resume.py",
        (
            "run/steps.py",
            '                self.doing, self.step = "charging", step\n                charge()\n',
            '                self.doing, self.step = "charging", step\n',
        ),
        (
            "run/steps.py",
            "                yield step\n",
            "                charge()\n                yield step\n",
        ),
    ),
    mutant(
        "a failed step of a table's cell drawn again",
        "every batch that was drawn is charged, also one that failed",
        "tests/paper/test_trainer.py",
        ("paper/underway.py", "            self._journal.charge()\n", "            pass\n"),
    ),
    mutant(
        "ledger of another plan accepted",
        "an edited plan is detected",
        "tests/privacy/test_ledger.py",
        ("privacy/ledger.py", '        differing = "the plan hash"\n', '        return\n        differing = "the plan hash"\n'),
    ),
    mutant(
        "resume folder open to all",
        "the secret part of a run is for its owner alone",
        "tests/run/test_train.py",
        ("run/folder.py", "folder.resume.mkdir(mode=0o700)", "folder.resume.mkdir(mode=0o755)"),
    ),
)

_OWN_LOOP = "tests/integrations/test_private_trainer.py::test_it_is_the_own_loop_bit_for_bit_under_one_key"

TRAINERS = (
    mutant(
        "a Trainer's training loss logged",
        "what is logged of the training data has noise",
        "tests/integrations/test_keeping.py",
        (
            "integrations/transformers/training.py",
            "            if privately.looks:\n                total += losses.detach().sum()\n",
            "            total += losses.detach().sum()\n",
        ),
        ("integrations/transformers/training.py", 'frozenset({"loss", "train_loss", ', 'frozenset({"train_loss", '),
    ),
    mutant(
        "a Trainer's step not charged before its batch is drawn",
        "a step is charged on the disk before its batch is drawn",
        "tests/integrations/test_keeping.py",
        ("integrations/epochs.py", "            self._charge()\n", ""),
    ),
    mutant(
        "steps after a Trainer's checkpoint forgotten",
        "steps that were released stay spent",
        "tests/integrations/test_keeping.py",
        ("privacy/ledger.py", 'steps["groupclip"] += max(0, lost)', 'steps["groupclip"] += min(0, lost)'),
        ("integrations/keeping.py", "while path.is_file() and engine", "while path.is_symlink() and engine"),
    ),
    mutant(
        "the last micro-batch of a Trainer's step left out",
        "a step is on the whole batch that was drawn",
        _OWN_LOOP,
        ("integrations/transformers/training.py", "for piece in inputs.batch:", "for piece in list(inputs.batch)[:-1]:"),
    ),
    mutant(
        "packed rows let through",
        "a row that is clipped as one is one record",
        "tests/integrations/test_arguments.py",
        ("integrations/transformers/arguments.py", 'Refusal("packing", bool,', 'Refusal("packing", lambda _: False,'),
    ),
    mutant(
        "the best model chosen on training data",
        "no choice is made by a statistic without noise",
        "tests/integrations/test_arguments.py",
        (
            "integrations/transformers/training.py",
            "if train is not None and found is train:",
            "if train is None and found is train:",
        ),
    ),
    mutant(
        "epsilon logged where none is claimed",
        "no epsilon is told for a sampling that isn't secret",
        "tests/integrations/test_keeping.py",
        (
            "integrations/transformers/training.py",
            "if self._ledger.steps and not self._ledger.obstacle:",
            "if self._ledger.steps:",
        ),
    ),
    mutant(
        "the whole output folder published",
        "a push uploads weights, card and record alone",
        "tests/integrations/test_publishing.py",
        ("integrations/transformers/publishing.py", "folder_path=str(folder),", "folder_path=str(folder.parent),"),
    ),
    mutant(
        "Accelerate's scaler let through",
        "gradients are not scaled after they were clipped",
        "tests/integrations/test_accelerate.py",
        ("integrations/accelerate.py", "if accelerator.scaler is not None:", "if accelerator.scaler is None and False:"),
    ),
    mutant(
        "shuffled batches behind Opacus's names",
        "batches that chance alone didn't choose have no epsilon",
        "tests/integrations/test_opacus.py::test_what_cannot_be_right_is_refused_and_nothing_is_changed",
        ("integrations/opacus/arguments.py", "if not self.poisson_sampling:", "if self.poisson_sampling is None:"),
    ),
    mutant(
        "an abandoned batch in Opacus's next step",
        "a step is on one logical batch",
        "tests/integrations/test_opacus.py::test_an_abandoned_batch_does_not_come_into_the_next_step",
        ("integrations/opacus/optimizer.py", "            self._engine.discard()\n", "            pass\n"),
    ),
    mutant(
        "Lightning joins batches",
        "noise comes once for each logical batch",
        "tests/integrations/test_lightning.py::test_what_would_break_it_is_refused_with_the_fix",
        ("integrations/lightning/checks.py", "if trainer.accumulate_grad_batches != 1:", "if trainer.accumulate_grad_batches < 1:"),
    ),
    mutant(
        "Lightning logs the training loss",
        "what is logged of the training data has noise",
        "tests/integrations/test_lightning.py::test_what_the_step_logs_is_left_out_and_that_is_said_once",
        ("integrations/lightning/steps.py", '_LOGGING = ("log", "log_dict")', '_LOGGING = ("log_dict",)'),
    ),
    mutant(
        "a table read by its columns",
        "an item of a data set is one record",
        "tests/sampling/test_tables.py::test_every_record_is_one_sample",
        ("sampling/tables.py", "return ArrowRows(dataset)", "return dataset"),
    ),
)

MUTANTS = (*CLIPPING, *ALONE, *NOISE, *ACCOUNTING, *CORRELATED, *RUNS, *TRAINERS)
