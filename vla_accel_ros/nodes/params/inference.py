"""Parameters of the node inference: the model, its loops, and those of chunking and of a fleet."""

from __future__ import annotations

from vla_accel_ros.control.horizon import ALL
from vla_accel_ros.engine.config import LANES, MOST_TEXT, STAGGERING, EngineConfig
from vla_accel_ros.models.flow.solver import SOLVERS
from vla_accel_ros.nodes.params.chunking import CHUNKING
from vla_accel_ros.nodes.params.fleet import OF_A_FLEET
from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter

INFERENCE = (
    AUTOSTART,
    CONTRACT,
    Parameter(
        "after_restart",
        "keep",
        "What to do with the instruction after a process that did not end cleanly: keep continues it, "
        "forget waits for a new one. After a clean end it is always forgotten.",
        choices=("keep", "forget"),
    ),
    Parameter(
        "model",
        "",
        "Checkpoint folder of openpi (PyTorch or JAX), lerobot, OpenVLA or ours; `vla inspect` shows "
        "which. Must be given.",
    ),
    Parameter(
        "statistics",
        "",
        "The robot's statistics, if the checkpoint has several: openpi's asset id, OpenVLA's data set; for "
        "a checkpoint that lerobot saved, the folder of a data set whose meta/stats.json replaces its own.",
    ),
    Parameter(
        "trained_as",
        "",
        "Settings of an openpi training that none of its checkpoint's files holds: the public configuration "
        "(pi05_libero), or as `vla inspect` asks for them (action_horizon=10 ...). Of lerobot's pi0 and "
        "pi0.5: prompt_state=padded or own, if `vla inspect` asks for it. Empty for any other.",
    ),
    Parameter(
        "prompt_state",
        "auto",
        "The state in pi0.5's prompt: its own dimensions, padded to all of the network's (lerobot up to "
        "0.4.4), or none; auto follows the checkpoint.",
        choices=("auto", "own", "padded", "none"),
    ),
    Parameter(
        "device",
        "auto",
        "Where the model runs; auto takes CUDA if there is one.",
        choices=("auto", "cpu", "cuda"),
    ),
    Parameter(
        "dtype",
        "auto",
        "Number format of the weights and the KV cache; auto is bfloat16 on CUDA and float32 elsewhere.",
        choices=("auto", "float32", "bfloat16"),
    ),
    Parameter(
        "fast",
        "auto",
        "Compute with captured stages, which are made while the node configures; false is plain torch. "
        "auto: on CUDA, for pi0, pi0.5 and OpenVLA (fused kernels, which need triton), SmolVLA, and "
        "policies of other packages that can be captured.",
        choices=("auto", "true", "false"),
    ),
    Parameter(
        "precision",
        EngineConfig.precision,
        "Precision of the fast stages. All but exact change the actions (bench/precision.py of the "
        "repository measures by how much): fp8 multiplies in 8 bits, on GPUs from sm_89 on; int8 and int4 "
        "store the weights of denoising and text; w8a8 multiplies int8 by int8 in all stages, on GPUs from "
        "sm_80 on; w8a8-int4 does so in encode and prefill, with int4 weights in denoising and text.",
        choices=("exact", "fp8", "int8", "int4", "w8a8", "w8a8-int4"),
    ),
    Parameter(
        "calibration",
        EngineConfig.calibration,
        "File of vla calibrate for precision w8a8 and w8a8-int4: it smooths columns, and keeps "
        "products that would lose too much exact; empty: none.",
    ),
    Parameter(
        "keep_exact",
        EngineConfig.keep_exact,
        "Keep the exact weights of stages that precision has in fewer bits. False drops them while the "
        "checkpoint is loaded, a layer at a time, to save memory; staggered chunks, guidance by the exact "
        "Jacobian and, in fp8, questions are then refused (docs/lab/plan.md).",
    ),
    Parameter(
        "offload",
        EngineConfig.offload,
        "Vision layers of the fast stages whose weights stay in host memory and are copied to the GPU in "
        "every frame: none, vision (all) or vision:0.25 (a share). Actions are the same; the log says what "
        "it saves and costs (docs/lab/offload.md).",
    ),
    Parameter(
        "torch_threads",
        1,
        "CPU threads of one torch operator; 0 leaves torch's own choice.",
        minimum=0,
        maximum=256,
    ),
    Parameter(
        "kv_slots",
        EngineConfig.slots,
        "Frames whose KV cache fits at once: one being written, the newest, one acted on, one asked about; "
        "slots for further answers (language_answers) are added.",
        minimum=4,
        maximum=64,
    ),
    Parameter(
        "vision_hz", 10.0, "Rate at which frames are encoded and prefilled [Hz].", minimum=0.1, maximum=240.0
    ),
    Parameter(
        "action_hz",
        60.0,
        "Highest rate of chunks from one frame, for newer joints (a model with a state token) or, with "
        "guidance, newly committed points [Hz]; the first chunk of a new frame is made at once.",
        minimum=0.1,
        maximum=1000.0,
    ),
    Parameter(
        "chunk_slot",
        "auto",
        "Also write every chunk to shared memory, for a trajectory node on this machine "
        "(docs/lab/high_rate.md): auto unless another process already does, true refuses activation in that "
        "case, false sends messages only.",
        choices=("auto", "true", "false"),
    ),
    Parameter(
        "chunk_messages_hz",
        100.0,
        "Most chunks a second to publish as messages (action_chunk), for bags, viewers and other machines "
        "[Hz]; 0 is all.",
        minimum=0.0,
        maximum=1000.0,
    ),
    Parameter(
        "language_hz",
        1.0,
        "Rate at which the model continues its own prompt [Hz]; 0: only when it is asked. Texts that take "
        "longer than a period are written together.",
        minimum=0.0,
        maximum=60.0,
    ),
    Parameter(
        "vision_deadline_s", 0.0, "A vision run longer than this is a miss [s]; 0 is one period.", 0.0, 10.0
    ),
    Parameter(
        "action_deadline_s", 0.1, "An action run longer than this is a miss [s]; 0 is one period.", 0.0, 10.0
    ),
    Parameter(
        "language_deadline_s",
        0.0,
        "A forward of answers longer than this is a miss [s]; 0 is one period.",
        0.0,
        60.0,
    ),
    Parameter(
        "scheduling",
        EngineConfig.scheduling,
        "Scheduling policy, which decides what runs next: whole, staggered, throughput, batches, tokens or "
        "one of another package (entry points vla_accel_ros.policies); auto follows from the other "
        "parameters.",
    ),
    Parameter(
        "lanes",
        EngineConfig.lanes,
        "What runs at once, each lane in its own thread and CUDA stream: one: nothing, one after another; "
        "text: text beside further chunks, not beside a frame or its first chunk; two: actions beside "
        "frames and text; three: frames, actions and text. Chunks have the same bits.",
        choices=LANES,
    ),
    Parameter(
        "prefill_groups",
        EngineConfig.prefill_groups,
        "Groups of layers in which a frame is computed. Between two groups comes a step of staggered "
        "chunks, which then waits for one group instead of a whole frame (docs/lab/streaming.md). Needs fast "
        "stages of pi0 or pi0.5. 1: a frame is computed at once.",
        minimum=1,
        maximum=64,
    ),
    Parameter(
        "text_groups",
        EngineConfig.text_groups,
        "Groups of layers in which a token of text is computed, each scheduled separately between actions "
        "(docs/lab/streaming.md). Needs fast stages. 1: a token is computed at once.",
        minimum=1,
        maximum=64,
    ),
    Parameter(
        "text_share",
        EngineConfig.text_share,
        "Share of time for text when further chunks of a frame would take all of it; new frames and their "
        "first chunks never wait for it (docs/lab/streaming.md). 0: a token each 0.2 s.",
        minimum=0.0,
        maximum=MOST_TEXT,
    ),
    Parameter(
        "frames_together",
        EngineConfig.frames_together,
        "Most frames in one forward when several wait, as with many robots, for scheduling throughput or "
        "batches. A chunk then differs by rounding with the frames beside its own, and a replay is near, "
        "not equal. Needs fast stages of pi0 or pi0.5. 1: each alone.",
        minimum=1,
        maximum=16,
    ),
    Parameter(
        "partition",
        EngineConfig.partition,
        "Sets of the GPU's multiprocessors for two or three lanes: none; A:B in quotes, A for actions and "
        "B for frames and text; auto measures splits on configure and uses one only if actions would be "
        "late without it (docs/lab/streaming.md). If a GPU cannot be divided, actions have priority.",
    ),
    Parameter(
        "token_mode",
        EngineConfig.token_mode,
        "How frames of a model that acts by tokens (OpenVLA) share forwards: sequential: not at all; "
        "pipelined: later frames carry the tokens of earlier ones; speculative: the last action is a draft "
        "of the next; auto: by measured times and how often drafts are right. In float32 the actions are "
        "the same.",
        choices=("sequential", "pipelined", "speculative", "auto"),
    ),
    Parameter(
        "token_prefer",
        EngineConfig.token_prefer,
        "Goal of speculative and auto: the freshness of an action, or the rate of actions.",
        choices=("freshness", "rate"),
    ),
    Parameter(
        "language_max_tokens",
        EngineConfig.answer_tokens,
        "Longest answer, in tokens.",
        minimum=1,
        maximum=512,
    ),
    Parameter(
        "language_answers",
        EngineConfig.answers,
        "Answers written at once; further ones wait.",
        minimum=1,
        maximum=32,
    ),
    Parameter(
        "denoise_steps", EngineConfig.steps, "Steps of flow matching per chunk.", minimum=1, maximum=64
    ),
    Parameter(
        "solver",
        EngineConfig.solver,
        "Solver of flow matching: euler, the one that policies are trained for, or ab2, second-order "
        "Adams-Bashforth, as accurate with about half the denoise_steps (docs/lab/solvers.md). For models "
        "that act by flow.",
        choices=SOLVERS,
    ),
    Parameter(
        "staggered",
        EngineConfig.staggered,
        "Chunks denoised at once, each begun on the newest frame and joints, a step after the one before "
        "(faster only with fast): up to denoise_steps times as many chunks, each finished later than one "
        "that is denoised alone. More than denoise_steps are for many robots: several begin in a step. "
        "They are not guided (rtc). 0: one chunk at a time.",
        minimum=0,
        maximum=64,
    ),
    Parameter(
        "staggering",
        EngineConfig.staggering,
        "Which chunks are staggered: stream: all; fresh: further chunks of a frame, for newer joints; the "
        "frame's first chunk is denoised whole and before them (with lanes three in its own lane).",
        choices=STAGGERING,
    ),
    Parameter(
        "seats_by_load",
        EngineConfig.seats_by_load,
        "Compute a step of staggered chunks with the fewest of 1, 2, 4, ... and all seats that hold its "
        "chunks, so that empty seats cost less (docs/lab/staggered.md). Chunks then differ by rounding with "
        "what is denoised beside them, and a replay is near, not equal. Needs fast stages of pi0 or pi0.5.",
    ),
    Parameter(
        "joints_each_step",
        EngineConfig.joints_each_step,
        "Give every step of a staggered chunk the newest joints, not only those at its start, for a policy "
        "with a state token (pi0) (docs/lab/staggered.md). The policy was not trained this way: measure "
        "success before you rely on it.",
    ),
    Parameter(
        "time_rule",
        EngineConfig.time_rule,
        "How the flow time is stepped (models/flow/sampling.py); auto is the rule that the policy was "
        "trained with.",
        choices=("auto", "openpi", "lerobot"),
    ),
    Parameter(
        "seed",
        EngineConfig.seed,
        "Seed of the denoising noise; `noise` says what else the noise depends on.",
        minimum=0,
    ),
    Parameter(
        "noise",
        EngineConfig.noise,
        "Initial noise of denoising: fresh for each chunk, or coherent: a function of the time of each "
        "action, so that overlapping chunks begin alike: smaller seams, as much success, and no smoother "
        "motion (docs/lab/performance.md).",
        choices=("fresh", "coherent"),
    ),
    Parameter(
        "horizon",
        ALL,
        "How many leading actions of a chunk may be executed before another comes: all, static:N, or by "
        "its denoising or the chunk before it: update_ratio:T, last_update:M, agreement:M, each with "
        "+least:N and +elastic:N; '; PATTERN=...' for tasks whose instruction matches (docs/lab/horizon.md).",
    ),
    *CHUNKING,
    *OF_A_FLEET,
)
