"""What a GPU can do at best: memory, bandwidth, dense arithmetic, links. Data, with the source of each row.

Memory in bytes as the driver reports it to CUDA (less than the box says), bandwidth and links in bytes/s,
arithmetic in FLOP/s *without* sparsity. `None`: the GPU has no unit for that type. Prevents: marketing's
sparse figures read as dense (twice too fast), and GB read as GiB (7 % of memory that is not there).
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import InvalidInput

GIB = 1024.0**3


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `link_bytes_per_s` is one direction to its peers in the node; `is_nvlink` says over what."""

    name: str
    title: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_16: float  # bf16 or fp16, tensor cores
    flops_8: float | None  # fp8; int8 where there is no fp8
    flops_4: float | None  # nvfp4, mxfp4
    link_bytes_per_s: float
    is_nvlink: bool
    source: str

    def flops(self, compute_bits: int) -> float:
        """FLOP/s for operands of `compute_bits`. Falls back to the next wider type the GPU has."""
        if compute_bits <= 4 and self.flops_4 is not None:
            return self.flops_4
        if compute_bits <= 8 and self.flops_8 is not None:
            return self.flops_8
        return self.flops_16


def _gpu(
    name: str,
    title: str,
    gib: float,
    tb_s: float,
    tflops: tuple[float, float | None, float | None],
    link: tuple[float, bool],
    source: str,
) -> Gpu:
    wide, eight, four = tflops
    return Gpu(
        name,
        title,
        gib * GIB,
        tb_s * 1e12,
        wide * 1e12,
        None if eight is None else eight * 1e12,
        None if four is None else four * 1e12,
        link[0] * 1e9,
        link[1],
        source,
    )


_H100 = "NVIDIA H100 Tensor Core GPU datasheet (sparse figures halved)"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_ADA = "NVIDIA Ada GPU architecture whitepaper"
#: Memory is `torch.cuda.get_device_properties().total_memory` as public vLLM logs print it, to 0.1 GiB.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu(
            "b200",
            "B200 SXM 180 GB",
            178.4,
            7.7,
            (2250, 4500, 9000),
            (900, True),
            "NVIDIA DGX B200 datasheet",
        ),
        _gpu(
            "h200", "H200 SXM 141 GB", 139.7, 4.8, (989, 1979, None), (450, True), "NVIDIA H200 datasheet"
        ),
        _gpu("h100-sxm", "H100 SXM 80 GB", 79.1, 3.35, (989, 1979, None), (450, True), _H100),
        _gpu("h100-nvl", "H100 NVL 94 GB", 93.1, 3.9, (835, 1671, None), (300, True), _H100),
        _gpu("h100-pcie", "H100 PCIe 80 GB", 79.1, 2.0, (756, 1513, None), (64, False), _H100),
        _gpu("a100-80", "A100 SXM 80 GB", 79.2, 2.04, (312, 624, None), (300, True), _A100),
        _gpu("a100-40", "A100 SXM 40 GB", 39.4, 1.56, (312, 624, None), (300, True), _A100),
        _gpu("l40s", "L40S 48 GB", 44.4, 0.864, (362, 733, None), (32, False), "NVIDIA L40S datasheet"),
        _gpu("l4", "L4 24 GB", 22.0, 0.3, (121, 242, None), (32, False), "NVIDIA L4 datasheet"),
        _gpu("a10g", "A10G 24 GB", 22.1, 0.6, (70, 140, None), (32, False), "NVIDIA A10 datasheet, AWS G5"),
        _gpu("rtx-4090", "RTX 4090 24 GB", 23.6, 1.01, (165, 330, None), (32, False), _ADA),
        _gpu(
            "rtx-3090",
            "RTX 3090 24 GB",
            23.6,
            0.936,
            (71, 142, None),
            (32, False),
            "NVIDIA Ampere GA102 GPU architecture whitepaper",
        ),
    )
}


def gpu(name: str) -> Gpu:
    """Return the GPU of that name. Raises InvalidInput with the names there are."""
    try:
        return GPUS[name]
    except KeyError:
        raise InvalidInput(
            f"unknown GPU {name[:40]!r}", field="gpu", hint="One of " + ", ".join(GPUS)
        ) from None
