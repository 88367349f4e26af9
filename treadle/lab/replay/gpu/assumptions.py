"""Values with their sources: statements of the paper, measurements of others, and assumptions.

The paper publishes neither its teachers' sizes, nor their load, nor what its GPUs are. The mean execution time of a
teacher is taken from its Table 1, so execution is an input here. Nothing was fitted to the ratios of §6.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.lab.replay.tangram.assumptions import assumed


@dataclass(frozen=True)
class GpuCluster:
    """GPUs that the model services share."""

    nodes: int = assumed(5, "§6.1")
    gpus: int = assumed(8, "§6.1: of a node")
    device_gb: float = assumed(80.0, "ours: §6.1 says high-end; the smallest Hopper GPU")

    @property
    def all_gpus(self) -> int:
        return self.nodes * self.gpus


@dataclass(frozen=True)
class Teachers:
    """Teacher models of MOPD: each computes log-probabilities of the trajectories of one RL task."""

    count: int = assumed(9, "§6.1")
    weights_gb: float = assumed(65.5, "§6.1: Qwen3-32B is one of the trained models, and a teacher is as large; bf16")
    act_s: float = assumed(0.621, "Table 1: mean execution, MOPD, batch 2,048, read as seconds with a degree of 4")
    serial: float = assumed(0.1, "ours: Amdahl's part that tensor parallelism does not shorten; E(4) = 0.77")
    concurrency: int = assumed(1, "§5.3: one action on a GPU; a prefill is bound by compute, so two take twice as long")
    share_spread: float = assumed(0.5, "ours: of the tasks' shares of a batch, standard deviation of the logarithm")


@dataclass(frozen=True)
class JudgeModel:
    """Judge of DeepSearch."""

    weights_gb: float = assumed(63.0, "§6.1: a finetuned GPT-OSS; ours: the one of 120B, as published in four bits")
    act_s: float = assumed(2.0, "ours, unpublished: a verdict of some 300 tokens with a degree of 4")
    spread: float = assumed(0.5, "ours: of verdicts, standard deviation of the logarithm")
    serial: float = assumed(0.3, "ours: decoding gains less from tensor parallelism; E(4) = 0.53")
    concurrency: int = assumed(4, "ours: decoding is bound by memory, so a batch of 4 is as fast; for all systems")


@dataclass(frozen=True)
class TaskRollout:
    """Rollouts of MOPD: trajectories of a batch begin together, and each ends with one call of its teacher."""

    median_tokens: float = assumed(5_000, "as in the replay of DistRS: median of a task's outputs")
    task_spread: float = assumed(
        0.5, "ours: of the tasks' medians: §6.2 has diverse and partially interleaved patterns"
    )
    spread: float = assumed(0.55, "as in the replay of DistRS: of the outputs of one task")
    most_tokens: float = assumed(16_384, "as in the replay of DistRS")
    token_s: float = assumed(0.027, "as in the replay of DistRS: 16K tokens take 440 s")
    speed_spread: float = assumed(0.1, "ours: of decoding speeds; outputs that are cut off do not end at one moment")
    questions: int = assumed(
        4, "ours: recorded searches that one DeepSearch trajectory consists of; BrowseComp is long"
    )


@dataclass(frozen=True)
class Engines:
    """Engines that sleep and wake (evict on execution)."""

    copy_gb_s: float = assumed(25.8, "facts A1: plain pinned copies, 24 GiB/s; each GPU has a link of its own")
    wake_s: float = assumed(0.1, "facts A2: a wake-up without its weights takes 0.1 to 0.8 s")
    evict_s: float = assumed(0.08, "facts A2: sleep of Qwen3-32B without a copy (§5.3: eviction writes nothing back)")
    canary_s: float = assumed(0.05, "ours: one token with a known answer")
    restore_s: float = assumed(
        0.0, "if not 0: of each restore, instead of wake_s + the copy of its part of the weights"
    )
    work_gb: float = assumed(8.0, "ours: KV cache and activations of a resident engine, on each of its GPUs")
    cold_s: float = assumed(60.0, "facts A2: cold starts take 30 to 100 s and more; none occurs after the preparation")
    action_s: float = assumed(0.01, "ours: network and bookkeeping of an action, for all systems")


@dataclass(frozen=True)
class Partition:
    """The static baseline."""

    degree: int = assumed(4, "§6.1: GPUs of each model, with tensor parallelism")
    replicas: int = assumed(1, "§6.1; more of them are the over-provisioned baseline of Figure 8(b), right")


@dataclass(frozen=True)
class Swapper:
    """The FIFO swapper, like ServerlessLLM."""

    degree: int = assumed(4, "§6.3: it lacks elastic reallocation; ours: as the static baseline")
    start_s: float = assumed(
        10.0, "ours, unpublished: a load starts an engine, beside the copy; facts A2: 30 to 100 s cold"
    )


CLUSTER = GpuCluster()
TEACHERS = Teachers()
JUDGE = JudgeModel()
ROLLOUT = TaskRollout()
ENGINES = Engines()
PARTITION = Partition()
SWAPPER = Swapper()
