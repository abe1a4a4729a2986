"""Training loops of random kernels, one process for each GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sensor_jobs.clocks import Constant, Law, PowerCap, Throttling, Walk

MS = 1_000_000
MAX_KERNELS = 3000
PRODUCTS = {"amd": "AMD Instinct MI300X", "nvidia": "NVIDIA GH200 480GB"}
"""GPUs by vendor; of both it is not known what sensors of the clock show."""
MAX_MHZ = {"amd": 2100.0, "nvidia": 1980.0}
KINDS = ("beta0", "beta1", "mixed", "few", "constant", "throttled", "groups")
_NAMES = {
    "amd": {
        "matrix": "Cijk_Ailk_Bljk_BBS_BH_MT{0}x{1}x64_MI16x16x1_SN_K1",
        "attention": "_ZN2ck_tile6kentryI14FmhaFwdKernel{0}x{1}EEvT_",
        "vector": "void at::native::vectorized_elementwise_kernel<4, Functor{0}, Array<char*, {1}>>",
        "norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<Half{0}, float{1}>",
    },
    "nvidia": {
        "matrix": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{0}x{1}x64_warpgroupsize1x1x1_cublas",
        "attention": "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{0}, {1}, 64, 4>>",
        "vector": "void at::native::vectorized_elementwise_kernel<4, Functor{0}, Array<char*, {1}>>",
        "norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<Half{0}, float{1}>",
    },
}  # fmt: skip
_OPERATORS = {
    "matrix": "aten::mm",
    "attention": "aten::_flash_attention_forward",
    "vector": "aten::mul",
    "norm": "aten::native_layer_norm",
}
_HEAT = {"matrix": (0.8, 1.0), "attention": (0.7, 1.0), "vector": (0.3, 0.6), "norm": (0.3, 0.5)}


@dataclass(frozen=True)
class Kernel:
    """A kernel: `work_ns` at the highest clock, with noise of relative size `noise` at each repeat."""

    name: str
    operator: str
    grid: int
    work_ns: float
    beta: float
    heat: float
    noise: float
    matrix: bool


@dataclass(frozen=True)
class Program:
    """Work of each GPU in each step, and how its clock moves.

    `laws` has the clock of each GPU. `lead_steps` precede those that the profiler records, and `tail_steps` follow
    them. Each step ends with the host waiting for the GPU, which then idles for `bubble_ns`.
    A GPU draws `idle_watts`; work adds its heat times `core_watts`, as its clock to the power of `power_exponent`, and
    `memory_watts` times 1 - β at any clock.
    """

    seed: int
    kind: str
    vendor: str
    laws: tuple[Law, ...]
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    optimizer: tuple[Kernel, ...]
    transfer_ns: float
    steps: int
    lead_steps: int
    tail_steps: int
    bubble_ns: int
    idle_watts: float = 130.0
    core_watts: float = 450.0
    memory_watts: float = 120.0
    power_exponent: float = 2.2
    model: str = ""

    @property
    def product(self) -> str:
        """The name of the GPUs."""
        return self.model or PRODUCTS[self.vendor]

    @property
    def gpus(self) -> int:
        return len(self.laws)

    @property
    def max_mhz(self) -> float:
        return MAX_MHZ[self.vendor]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of a step in order of launch, without communication."""
        return (*self.forward, *self.backward, *self.optimizer)

    def at_highest_clock(self) -> Program:
        """Return the same program on GPUs that always run at the highest clock."""
        return replace(self, laws=tuple(Constant(1.0) for _ in self.laws))


def _beta(kind: str, of: str, random: np.random.Generator) -> float:
    if kind in ("beta0", "beta1"):
        return float(kind == "beta1")
    if random.random() < 1 / 3:  # whatever its name suggests
        return float(random.uniform(0, 1))
    low, high = (0.5, 1.0) if of in ("matrix", "attention") else (0.0, 0.6)
    return float(random.uniform(low, high))


def _some_kernels(
    kind: str, vendor: str, count: int, random: np.random.Generator
) -> tuple[Kernel, ...]:
    """Return kernels of one layer; half of them or more multiply matrices or are attention."""
    made = []
    for i in range(count):
        heavy = i % 2 == 0
        of = str(random.choice(["matrix", "matrix", "attention"] if heavy else ["vector", "norm"]))
        a, b = random.choice([16, 32, 64, 96, 128, 192, 256], 2)
        made.append(
            Kernel(
                name=_NAMES[vendor][of].format(a, b),
                operator=_OPERATORS[of],
                grid=int(random.integers(64, 4096)) * 4,
                work_ns=float(random.lognormal(0.0 if heavy else -1.2, 0.5)),
                beta=_beta(kind, of, random),
                heat=float(random.uniform(*_HEAT[of])),
                noise=float(np.exp(random.uniform(np.log(0.005), np.log(0.03)))),
                matrix=of in ("matrix", "attention"),
            )
        )
    return tuple(made)


def _laws(kind: str, random: np.random.Generator) -> tuple[Law, ...]:
    """Return the clock of each GPU of a job of this kind."""
    if kind == "constant":
        return (Constant(float(random.uniform(0.65, 0.95))),) * int(random.choice([1, 2]))
    if kind == "throttled":
        good = Walk(float(random.uniform(0.93, 0.99)), 0.01, 50 * MS)
        deep = float(random.uniform(0.6, 0.8))
        bad: Law = (
            Throttling(0.95, deep, random.uniform(50, 300) * MS, random.uniform(100, 600) * MS)
            if random.random() < 0.5
            else Walk(deep, 0.02, 50 * MS)
        )
        laws: list[Law] = [good] * 4
        laws[int(random.integers(4))] = bad
        return tuple(laws)
    if kind == "groups":
        slow, fast = random.uniform(0.65, 0.8), random.uniform(0.83, 0.98)
        return tuple(Walk(float(f), 0.005, 20 * MS) for f in (slow, fast, slow, fast))
    drawn = random.random()
    if drawn < 0.5:
        law: Law = PowerCap(
            float(random.uniform(0.55, 0.85)), random.uniform(3, 30) * MS, random.uniform(0, 0.01)
        )
    elif drawn < 0.8:
        law = Walk(
            float(random.uniform(0.7, 0.9)),
            float(random.uniform(0.03, 0.1)),
            random.uniform(5, 200) * MS,
        )
    else:
        law = Throttling(
            float(random.uniform(0.9, 1.0)), float(random.uniform(0.55, 0.8)),
            random.uniform(30, 300) * MS, random.uniform(20, 300) * MS,
        )  # fmt: skip
    return (law,) * (1 if kind == "few" else int(random.choice([1, 2])))


def program(kind: str, vendor: str, seed: int) -> Program:
    """Return a random program of a kind (`KINDS`); the same for the same arguments."""
    random = np.random.default_rng([seed, KINDS.index(kind), len(vendor)])
    laws = _laws(kind, random)
    layers = int(random.integers(3, 7))
    of_layer = int(random.integers(3, 6))
    few = kind == "few"

    def stack() -> tuple[Kernel, ...]:
        if few:  # each layer has kernels of its own
            return _some_kernels(kind, vendor, layers * of_layer, random)
        return _some_kernels(kind, vendor, of_layer, random) * layers

    forward, backward = stack(), stack()
    optimizer = _some_kernels(kind, vendor, 2, random)
    total = sum(k.work_ns for k in (*forward, *backward, *optimizer))
    scale = float(random.uniform(50, 300)) * MS / total
    limit = MAX_KERNELS // (len(laws) * (len(forward) + len(backward) + 3))
    steps = int(random.integers(5, 7)) if few else int(min(random.integers(12, 31), limit))
    step_s = scale * total / 1e9

    def scaled(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        return tuple(replace(k, work_ns=k.work_ns * scale) for k in kernels)

    return Program(
        seed=seed,
        kind=kind,
        vendor=vendor,
        laws=laws,
        forward=scaled(forward),
        backward=scaled(backward),
        optimizer=scaled(optimizer),
        transfer_ns=float(random.uniform(0.02, 0.1)) * scale * total,
        steps=steps,
        lead_steps=int(np.ceil(random.uniform(0.3, 1.5) / step_s)),
        tail_steps=int(random.integers(0, 3)),
        bubble_ns=int(random.uniform(0.05, 1.0) * MS),
    )
