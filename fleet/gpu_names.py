"""Names of GPU metrics by exporter, and what error codes mean: data, no code.

Each field maps to its names, newest first, and to what one unit is in ours: ratios 0..1, watts, bytes,
degrees Celsius. Prevents: percent read as a ratio, MiB as bytes, and DCGM's blank value as a number.
Sources: NVIDIA/dcgm-exporter, etc/default-counters.csv and etc/dcp-metrics-included.csv; DCGM's field
identifiers; triton-inference-server/server, docs/user_guide/metrics.md, GPU metrics; NVIDIA, "Xid Errors"
(catalog). No exporter was run for these tables.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024.0 * 1024.0

#: From here on a value is DCGM's "blank" (9223372036854775794 and neighbours): nothing was measured.
BLANK = 9.2e18


@dataclass(frozen=True, slots=True)
class GpuDialect:
    """How one exporter names a GPU's metrics. `fields`: ours -> (names, our units in one of theirs)."""

    name: str
    prefix: str
    gpu: tuple[str, ...]  # labels with the GPU's UUID
    host: tuple[str, ...]  # labels with the machine's name; dcgm-exporter renamed its own in May 2026
    fields: dict[str, tuple[tuple[str, ...], float]]


DCGM = GpuDialect(
    name="dcgm",
    prefix="DCGM_FI_",
    gpu=("UUID",),
    host=("hostname", "Hostname"),
    fields={
        # "some kernel ran": 1 on any busy engine. Not given for MIG instances.
        "used_ratio": (("DCGM_FI_DEV_GPU_UTIL",), 0.01),
        "tensor_ratio": (("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",), 1.0),
        "memory_busy_ratio": (("DCGM_FI_PROF_DRAM_ACTIVE",), 1.0),
        "power_w": (("DCGM_FI_DEV_POWER_USAGE",), 1.0),
        "memory_used_bytes": (("DCGM_FI_DEV_FB_USED",), _MIB),
        "memory_free_bytes": (("DCGM_FI_DEV_FB_FREE",), _MIB),
        "memory_reserved_bytes": (("DCGM_FI_DEV_FB_RESERVED",), _MIB),
        "temperature_c": (("DCGM_FI_DEV_GPU_TEMP",), 1.0),
        "xid": (("DCGM_FI_DEV_XID_ERRORS",), 1.0),  # the last code; never goes back to 0
        "row_remap_failed": (("DCGM_FI_DEV_ROW_REMAP_FAILURE",), 1.0),
    },
)

TRITON_GPU = GpuDialect(
    name="triton",
    prefix="nv_gpu_",
    gpu=("gpu_uuid",),
    host=(),
    fields={
        "used_ratio": (("nv_gpu_utilization",), 1.0),
        "power_w": (("nv_gpu_power_usage",), 1.0),
        "memory_used_bytes": (("nv_gpu_memory_used_bytes",), 1.0),
        "memory_total_bytes": (("nv_gpu_memory_total_bytes",), 1.0),
    },
)

GPU_DIALECTS: tuple[GpuDialect, ...] = (DCGM, TRITON_GPU)

#: Code -> (what happened, what to do). Codes that are not here are shown as a number.
XID_MEANINGS: dict[int, tuple[str, str]] = {
    13: ("graphics engine exception: mostly a fault of the program", "restart the engine"),
    31: ("memory page fault: mostly a fault of the program", "restart the engine"),
    43: ("the GPU stopped one program's work", "restart the engine"),
    45: ("a program's work was ended after another error", "look for the error before it"),
    46: ("the GPU stopped processing", "drain the node and reset the GPU"),
    48: ("uncorrectable (double bit) memory error", "drain the node and reset the GPU"),
    61: ("internal micro-controller breakpoint", "drain the node and reset the GPU"),
    62: ("internal micro-controller halt", "drain the node and reset the GPU"),
    63: ("a memory row was marked for remapping", "reset the GPU at the next maintenance"),
    64: ("a memory row could not be remapped", "drain the node and reset the GPU"),
    74: ("NVLink error", "drain the node; check links and neighbours"),
    79: ("the GPU has fallen off the bus", "drain the node and reboot it; replace it if it comes back"),
    92: ("high rate of corrected memory errors", "watch; reset at the next maintenance"),
    94: ("contained uncorrectable memory error: only its program is hit", "restart the engine"),
    95: ("uncontained uncorrectable memory error", "drain the node and reset the GPU"),
    109: ("context switch timeout", "restart the engine; reset the GPU if it comes back"),
    119: ("the GPU's system processor does not answer", "drain the node and reset the GPU"),
    120: ("error in the GPU's system processor", "drain the node and reset the GPU"),
    121: ("corrected error on a chip-to-chip link", "watch"),
    140: ("unrecovered memory error", "drain the node and reset the GPU"),
    143: ("the GPU could not be started", "drain the node and reboot it"),
    154: ("the GPU asks for a recovery action", "do what the driver's log line says"),
}


def xid_meaning(code: int) -> tuple[str, str]:
    """Return what an Xid code means and what to do. Source: NVIDIA, "Xid Errors", catalog."""
    unknown = (f"Xid {code}", "look it up in NVIDIA's Xid catalog and in the kernel's log")
    return XID_MEANINGS.get(code, unknown)
