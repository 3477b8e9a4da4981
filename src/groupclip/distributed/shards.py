"""Parameters of which each rank keeps a part (FSDP2's ``fully_shard``): found, and seen as the plain tensors that a rank keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedOperation
from .ranks import Ranks


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor. The module is loaded where there is one."""
    return type(tensor).__name__ == "DTensor" and type(tensor).__module__.startswith("torch.distributed.")


def local(tensor: Any) -> Tensor:
    """Return what this rank keeps of a tensor, on the same memory: the tensor itself where it is a plain one."""
    return tensor._local_tensor if is_sharded(tensor) else tensor


class Shard:
    """What one rank keeps of a parameter, as if it were a parameter: ``grad`` is this rank's part of the gradient.

    Args:
        param: the DTensor that the module and the optimizer hold between passes.

    Attributes:
        owners: the process group in which sums are scattered, this rank's number in it, and the dimension that is cut.
        peers: the ranks that keep the same part (HSDP); None where no other does.
    """

    def __init__(self, param: Any) -> None:
        self.param = param
        mesh, self.peers = param.device_mesh, None
        self._noted: Tensor | None = None
        for at, placement in enumerate(param.placements):
            group = mesh.get_group(at)
            if placement.is_shard():
                self.group, self.dim, self.place, self.size = (
                    group,
                    placement.dim,
                    mesh.get_local_rank(at),
                    mesh.size(at),
                )
            elif mesh.size(at) > 1:
                self.peers = Ranks(mesh.get_local_rank(at), mesh.size(at), group)

    @property
    def grad(self) -> Tensor | None:
        grad = self.param.grad
        return None if grad is None else local(grad)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            self.param.grad = None
            return
        from torch.distributed.tensor import DTensor

        param = self.param
        self.param.grad = DTensor.from_local(
            value, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
        )

    def note(self) -> None:
        """Remember the gradient as it is. Not by versions: DTensors don't count what ``torch._foreach_`` operations change."""
        grad = self.grad
        self._noted = None if grad is None else _sums(grad)

    @property
    def is_as_noted(self) -> bool:
        grad = self.grad
        return grad is not None and self._noted is not None and torch.equal(_sums(grad), self._noted)

    @property
    def requires_grad(self) -> bool:
        return self.param.requires_grad

    @property
    def data(self) -> Tensor:
        return local(self.param).detach()

    @property
    def dtype(self) -> torch.dtype:
        return self.param.dtype

    @property
    def device(self) -> torch.device:
        return local(self.param).device

    def detach(self) -> Tensor:
        return local(self.param).detach()

    def numel(self) -> int:
        return local(self.param).numel()

    def is_contiguous(self) -> bool:
        return local(self.param).is_contiguous()

    def data_ptr(self) -> int:
        return local(self.param).data_ptr()

    def pieces(self, whole: Tensor) -> list[Tensor]:
        """Return what each rank keeps of a tensor of the parameter's whole shape."""
        found = list(whole.chunk(self.size, self.dim))
        return found + [whole.narrow(self.dim, 0, 0)] * (self.size - len(found))


def _sums(tensor: Tensor) -> Tensor:
    """Return two sums ``[2]`` int64 that scaling, clipping and additions change: of its bits, and (in bits) of its numbers.

    They don't tell numbers that trade places, which are as private as they were.
    """
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        flat = tensor.detach().reshape(-1)
        numbers = flat.sum(dtype=torch.float64).view(torch.int64)
        return torch.stack([flat.view(_BITS[flat.itemsize]).sum(dtype=torch.int64), numbers])


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def unsharded(model: nn.Module) -> dict[int, nn.Parameter]:
    """Return, for the id of each parameter that ``fully_shard`` cut, the whole one that takes its place in a forward pass.

    They are the same tensors in every pass, without memory between passes. All ranks must call it: each part of the model is put
    together once.

    Raises:
        UnsupportedOperation: a parameter is cut otherwise (tensor parallelism), or not over all ranks.
    """
    cut = {name: param for name, param in model.named_parameters(remove_duplicate=False) if is_sharded(param)}
    if not cut:
        return {}
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        raise UnsupportedOperation(
            f"fully_shard of torch {torch.__version__} can't begin anew after a pass that failed (reset_iter_state): use torch "
            "2.13, or DistributedDataParallel"
        )
    from torch.distributed.fsdp import FSDPModule

    whole: dict[int, nn.Parameter] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            named = dict(model.named_parameters(remove_duplicate=False))
            whole.update({id(cut[name]): named[name] for name in cut if not is_sharded(named[name])})
            module.reshard()
    for name, param in cut.items():
        _check_cut(name, param, whole)
    return whole


def _check_cut(name: str, param: Any, whole: Mapping[int, nn.Parameter]) -> None:
    shards = [placement for placement in param.placements if placement.is_shard()]
    others = [placement for placement in param.placements if not (placement.is_shard() or placement.is_replicate())]
    if id(param) not in whole or len(shards) != 1 or others:
        raise UnsupportedOperation(
            f"parameter {name!r} is a DTensor with placements {tuple(param.placements)}, and not cut by fully_shard alone: under "
            "tensor parallelism a sample's gradient lies on several ranks, and its norm on none. Cut models by fully_shard, which "
            "keeps a sample's gradient on the rank that has the sample"
        )
    if param.device_mesh.size() != torch.distributed.get_world_size():
        raise UnsupportedOperation(
            f"parameter {name!r} is cut over {param.device_mesh.size()} of {torch.distributed.get_world_size()} processes, and "
            "groupclip sums over all of them: give fully_shard a mesh of all ranks"
        )


def roots(model: nn.Module) -> list[Any]:
    """Return the modules that ``fully_shard`` cut and that are in no other such module."""
    from torch.distributed.fsdp import FSDPModule

    found: list[Any] = []
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, FSDPModule) and id(module) not in inside:
            found.append(module)
            inside.update(map(id, module.modules()))
    return found


def have_begun(root: Any) -> bool:
    """Return whether a pass ever put the parts of a module together that ``fully_shard`` cut. Before, torch can't begin it anew.

    No pass did where the first logical batch had no sample on any rank, or where nothing was computed yet.
    """
    return root._get_fsdp_state()._is_root is not None


def scattered(totals: list[tuple[Shard, Tensor]]) -> list[Tensor]:
    """Return this rank's part of the sum over the ranks that a parameter is cut over, for each of some tensors, of whole shapes.

    One collective for each process group, dtype and device. All ranks must call it with the same parameters.
    """
    alike: dict[tuple[Any, torch.dtype, torch.device], list[int]] = {}
    for at, (shard, total) in enumerate(totals):
        alike.setdefault((shard.group, total.dtype, total.device), []).append(at)
    found: dict[int, Tensor] = {}
    for (group, dtype, device), places in alike.items():
        size = totals[places[0]][0].size
        pieces = {at: totals[at][0].pieces(totals[at][1]) for at in places}
        widths = [pieces[at][0].numel() for at in places]  # the first rank's is the largest
        rows = torch.zeros(size, sum(widths), dtype=dtype, device=device)
        start = 0
        for at, width in zip(places, widths, strict=True):
            for row, piece in zip(rows, pieces[at], strict=True):
                row[start : start + piece.numel()].copy_(piece.reshape(-1))
            start += width
        own = torch.empty(sum(widths), dtype=dtype, device=device)
        torch.distributed.reduce_scatter_single(own, rows.view(-1), group=group)
        for at, part in zip(places, own.split(widths), strict=True):
            piece = pieces[at][totals[at][0].place]
            found[at] = part[: piece.numel()].view(piece.shape)
    return [found[at] for at in range(len(totals))]
