"""Parameters of the node inference: the model, its loops, the agreement of chunks, and those of a fleet."""

from __future__ import annotations

from vla_accel_ros.engine.config import LANES, MOST_TEXT, STAGGERING, EngineConfig
from vla_accel_ros.fleet.horizon import ALL
from vla_accel_ros.models.flow.solver import SOLVERS
from vla_accel_ros.nodes.params.fleet import OF_A_FLEET
from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter

INFERENCE = (
    AUTOSTART,
    CONTRACT,
    Parameter(
        "after_restart",
        "keep",
        "The instruction after a process that did not end cleanly: keep goes on with it, forget waits for "
        "another. After a clean end it is always forgotten.",
        choices=("keep", "forget"),
    ),
    Parameter(
        "model",
        "",
        "Checkpoint folder of openpi (PyTorch or JAX), lerobot, OpenVLA or ours; `vla inspect` tells what it "
        "is. Empty: the bundled demo policy.",
    ),
    Parameter(
        "statistics",
        "",
        "Whose statistics, where the checkpoint has several: openpi's asset id, OpenVLA's data set; for one "
        "that lerobot saved, the folder of a data set whose meta/stats.json takes the place of its own.",
    ),
    Parameter(
        "prompt_state",
        "auto",
        "How pi0.5 has the state in its prompt: its own dimensions, padded to all of the network's (lerobot "
        "up to 0.4.4), or not at all; auto is what the checkpoint says.",
        choices=("auto", "own", "padded", "none"),
    ),
    Parameter(
        "device",
        "auto",
        "Where the model runs; auto takes CUDA when there is one.",
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
        "Compute by captured stages, which are made while the node configures; false is plain torch. auto: "
        "on CUDA, for pi0, pi0.5 and OpenVLA (fused kernels, which need triton), SmolVLA, and policies of "
        "other packages that say that they can be captured.",
        choices=("auto", "true", "false"),
    ),
    Parameter(
        "precision",
        EngineConfig.precision,
        "How exactly the fast stages compute. All but exact change the actions (bench/precision.py "
        "of the repository tells by how much): fp8 multiplies in 8 bits, on GPUs from sm_89 on; "
        "int8 and int4 are of the weights of denoising and text; w8a8 multiplies int8 by int8 in all stages, "
        "on GPUs from sm_80 on; w8a8-int4 in encode and prefill, with int4 weights in denoising and text; "
        "w8a8-fp8 is w8a8 with fp8 in place of int8, on GPUs from sm_89 on.",
        choices=("exact", "fp8", "int8", "int4", "w8a8", "w8a8-int4", "w8a8-fp8"),
    ),
    Parameter(
        "calibration",
        EngineConfig.calibration,
        "File of vla calibrate for precision w8a8, w8a8-int4 and w8a8-fp8, by which columns are smoothed and "
        "products that lose too much stay exact; empty: none.",
    ),
    Parameter(
        "eight_bit_denoise",
        EngineConfig.eight_bit_denoise,
        "Denoise in 8 bits with precision w8a8 and w8a8-fp8 on GPUs with fast memory, too (H100, H200, "
        "B200), where it is exact otherwise because launches bound it.",
    ),
    Parameter(
        "keep_exact",
        EngineConfig.keep_exact,
        "Keep the exact weights of what precision has in fewer bits. False gives them up while the "
        "checkpoint is loaded, a layer at a time, to save memory; staggered chunks, guidance by the exact "
        "Jacobian and, in fp8, questions are refused then (docs/plan.md).",
    ),
    Parameter(
        "offload",
        EngineConfig.offload,
        "Vision layers of the fast stages whose weights are in host memory and copied to the GPU in every "
        "frame: none, vision (all) or vision:0.25 (a share). Actions are the same; the log tells what it "
        "saves and costs (docs/offload.md).",
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
        "Frames whose KV cache fits at once: one being written, the newest, one acted on, one asked "
        "about; those of further answers (language_answers) come on top.",
        minimum=4,
        maximum=64,
    ),
    Parameter(
        "vision_hz", 10.0, "Rate at which frames are encoded and prefilled [Hz].", minimum=0.1, maximum=240.0
    ),
    Parameter(
        "action_hz",
        60.0,
        "How often at most chunks are made from one frame, for newer joints (a model with a state token) or, "
        "where chunks are guided, newly committed points [Hz]; of a new frame one is made at once.",
        minimum=0.1,
        maximum=1000.0,
    ),
    Parameter(
        "chunk_slot",
        "auto",
        "Every chunk in shared memory too, for a trajectory node on this machine (docs/high_rate.md): auto "
        "where no other process has that already, true refuses to be activated there, false is messages "
        "alone.",
        choices=("auto", "true", "false"),
    ),
    Parameter(
        "chunk_messages_hz",
        100.0,
        "At most so many chunks a second as messages (action_chunk), for bags, viewers and other machines "
        "[Hz]; 0 is all.",
        minimum=0.0,
        maximum=1000.0,
    ),
    Parameter(
        "language_hz",
        1.0,
        "Rate at which the model continues its own prompt, unasked [Hz]; 0 is only when it is asked. Texts "
        "that take longer than a period are written together.",
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
        "Which scheduling policy decides what runs next: whole, staggered, throughput, batches, tokens or "
        "one of another package (entry points vla_accel_ros.policies); auto is what the other parameters "
        "ask for.",
    ),
    Parameter(
        "lanes",
        EngineConfig.lanes,
        "What runs at once: one: nothing, each after the other; text: text beside further chunks, not beside "
        "a frame or its first chunk; two: actions beside frames and text; three: frames, actions and text; "
        "each in a thread and on a CUDA stream of its own. Chunks have the same bits.",
        choices=LANES,
    ),
    Parameter(
        "prefill_groups",
        EngineConfig.prefill_groups,
        "Groups of layers that a frame is computed in: between two of them comes a step of staggered chunks, "
        "which so waits for one group and not for a frame (docs/streaming.md). Needs fast stages, of pi0 or "
        "pi0.5. 1: a frame is computed at once.",
        minimum=1,
        maximum=64,
    ),
    Parameter(
        "text_groups",
        EngineConfig.text_groups,
        "Groups of layers that a token of text is computed in, each of which is fitted between actions by "
        "itself (docs/streaming.md). Needs fast stages. 1: a token is computed at once.",
        minimum=1,
        maximum=64,
    ),
    Parameter(
        "text_share",
        EngineConfig.text_share,
        "Of the time that text gets where further chunks of a frame would take all of it; new frames and "
        "their first chunks never wait for it (docs/streaming.md). 0: a token each 0.2 s.",
        minimum=0.0,
        maximum=MOST_TEXT,
    ),
    Parameter(
        "frames_together",
        EngineConfig.frames_together,
        "Most frames that are computed in one forward where several wait, as those of many robots do, with "
        "scheduling throughput or batches. A chunk then differs by rounding with what its frame was computed "
        "with, and a replay is near, not equal. Needs fast stages of pi0 or pi0.5. 1: each alone.",
        minimum=1,
        maximum=16,
    ),
    Parameter(
        "partition",
        EngineConfig.partition,
        "Sets of the GPU's multiprocessors for two or three lanes: none; A:B in quotes, A for actions and B "
        "for frames and text; auto measures splits on configure and takes one only where actions would be "
        "late without (docs/streaming.md). Where a GPU cannot be divided, actions come first by priority.",
    ),
    Parameter(
        "token_mode",
        EngineConfig.token_mode,
        "How frames of a model that acts by tokens (OpenVLA) share forwards: not at all; pipelined, later "
        "frames carry the tokens of earlier ones; speculative, the last action is a draft of the next; or "
        "auto, by measured times and how often drafts are right. In float32 the actions are the same.",
        choices=("sequential", "pipelined", "speculative", "auto"),
    ),
    Parameter(
        "token_prefer",
        EngineConfig.token_prefer,
        "What speculative and auto are for: the freshness of an action, or the rate of actions.",
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
        "Answers written at once; more wait.",
        minimum=1,
        maximum=32,
    ),
    Parameter(
        "denoise_steps", EngineConfig.steps, "Steps of flow matching per chunk.", minimum=1, maximum=64
    ),
    Parameter(
        "solver",
        EngineConfig.solver,
        "How a step of flow matching goes on: euler, as policies are trained to be sampled, or ab2, "
        "Adams-Bashforth of second order, which comes as near with about half the denoise_steps "
        "(docs/solvers.md). For models that act by flow.",
        choices=SOLVERS,
    ),
    Parameter(
        "staggered",
        EngineConfig.staggered,
        "Chunks denoised at once, each begun on the newest frame and joints, a step after the one before "
        "(needs fast to be faster): up to denoise_steps times as many chunks, each finished later than one "
        "that is denoised by itself. More than denoise_steps are for many robots: several begin in a step. "
        "Nothing guides them (rtc). 0: one chunk at a time.",
        minimum=0,
        maximum=64,
    ),
    Parameter(
        "staggering",
        EngineConfig.staggering,
        "What staggered chunks are: stream: all; fresh: further chunks of a frame, for newer joints, whose "
        "first chunk is denoised whole and before them (with lanes three in a lane of its own).",
        choices=STAGGERING,
    ),
    Parameter(
        "seats_by_load",
        EngineConfig.seats_by_load,
        "A step of staggered chunks computes the fewest of 1, 2, 4, ... and all seats that hold its chunks, "
        "so that empty seats cost less (docs/staggered.md). Chunks then differ by rounding with what is "
        "denoised beside them, and a replay is near, not equal. Needs fast stages of pi0 or pi0.5.",
    ),
    Parameter(
        "joints_each_step",
        EngineConfig.joints_each_step,
        "Every step of a staggered chunk is given the newest joints, for a policy with a state token (pi0), "
        "not those alone that it began with (docs/staggered.md). The policy was not trained so: measure "
        "success before it is relied on.",
    ),
    Parameter(
        "time_rule",
        EngineConfig.time_rule,
        "How the flow time is stepped (models/flow/sampling.py); auto is the rule of whoever trained "
        "the policy.",
        choices=("auto", "openpi", "lerobot"),
    ),
    Parameter(
        "seed",
        EngineConfig.seed,
        "Seed of the denoising noise, which is a function of it and of what `noise` says.",
        minimum=0,
    ),
    Parameter(
        "noise",
        EngineConfig.noise,
        "What denoising begins with: fresh noise for each chunk, or coherent noise, of the time of each "
        "action, so that chunks that overlap begin alike: smaller seams, as much success, and no smoother "
        "motion (docs/performance.md).",
        choices=("fresh", "coherent"),
    ),
    Parameter(
        "horizon",
        ALL,
        "How many leading actions of a chunk may be executed before another comes: all, static:N, or as its "
        "denoising or the chunk before it says: update_ratio:T, last_update:M, agreement:M, each with "
        "+least:N and +elastic:N; '; PATTERN=...' for the tasks whose instruction matches (docs/horizon.md).",
    ),
    Parameter(
        "rtc",
        "auto",
        "Real-time chunking, each chunk guided by the one before: auto while a trajectory node tells that it "
        "runs in mode rtc; always is for an executor that tells nothing.",
        choices=("auto", "always", "never"),
    ),
    Parameter(
        "rtc_method",
        "guidance",
        "How chunks agree: by guidance, which any policy takes; or trained, for one trained to be given what "
        "is executed meanwhile (rtc_training_max_delay in its config.json).",
        choices=("guidance", "trained"),
    ),
    Parameter(
        "rtc_mask",
        "exponential",
        "How strongly the actions after the delay must agree, over rtc_mask_horizon: fully, or falling.",
        choices=("hard", "linear", "exponential"),
    ),
    Parameter(
        "rtc_mask_horizon",
        8,
        "How many actions after the delay must agree at all; more is smoother and answers later.",
        minimum=0,
        maximum=10_000,
    ),
    Parameter(
        "rtc_window", 10, "Of how many last chunks the longest delay counts.", minimum=1, maximum=10_000
    ),
    Parameter(
        "rtc_delivery_s",
        0.01,
        "From a finished chunk to its arrival at the trajectory node, whose lead_s comes on top [s].",
        0.0,
        1.0,
    ),
    Parameter(
        "rtc_jacobian",
        "identity",
        "How the error is pulled back: identity costs nothing, exact a backward pass per denoising step.",
        choices=("identity", "exact"),
    ),
    *OF_A_FLEET,
)
