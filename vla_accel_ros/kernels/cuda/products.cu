// A product of a few dozen rows with its prologue and epilogue, for sm_90: kernels/reference/linear.py has
// the plain reference.
//
// Each block owns some columns (and, in `project`, a part of the inner dimension) and keeps all of its
// weights in shared memory. One thread issues a TMA load for each weight tile before the launch waits for the
// previous one, so weights arrive while that one still computes. After the wait it loads the activations, 64
// columns at a time. Two groups of four warps multiply (wgmma, 64 rows, float32 sums), one the even and one
// the odd chunks of the inner dimension, and each stores half of the rows. Blocks of `project` that share an
// inner dimension (split-K) form a cluster: they exchange partial sums through shared memory and add them in
// a fixed order, so that the same inputs give the same bits.
//
// For more rows than a tile has, the same blocks compute tile after tile: weights are loaded once, and the
// activations of the next tile are loaded while this one is stored. A row's sums do not depend on its tile.
//
// Macros: KIND (GATED_UP, ROTARY_QKV, PROJECT or BIASED: kernels/reference/norm.py), COLUMNS of a block (rows
// of weight; in the first two half of them gates, or low halves of a head), INNER chunks of 64 of the inner
// dimension, SPLIT blocks that share them (1 except in `project`), STAGES of activations in flight, TALL rows
// of an activation tile (a multiple of 8 up to 64), TILES that a block computes at most, ACTIVATION (GELU, SILU
// or NONE), LINEAR whether the bias and the gate of `project` are those of a linear layer, in bfloat16.

#include "hopper.cuh"

#define GATED_UP 0
#define ROTARY_QKV 1
#define PROJECT 2
#define BIASED 3
#define GELU 0
#define SILU 1
#define NONE 2

constexpr int CHUNK = 64, ROWS = 64, SUMS = COLUMNS / 2;
constexpr int CHUNKS = (INNER + SPLIT - 1) / SPLIT;  // chunks of a block; some have one fewer
constexpr u32 A_BYTES = TALL * CHUNK * 2, W_BYTES = COLUMNS * CHUNK * 2;
constexpr u32 HALVES_BYTES = SUMS * 512;
// The groups exchange halves where the activations were, unless a further tile needs that memory.
constexpr u32 RING_BYTES = TILES > 1                        ? STAGES * A_BYTES + HALVES_BYTES
                           : STAGES * A_BYTES > HALVES_BYTES ? STAGES * A_BYTES
                                                             : HALVES_BYTES;
constexpr int OWNED = (TALL / 8 + SPLIT - 1) / SPLIT * 8;  // rows that a block of `project` reduces, at most
constexpr int PAD = 8;  // padding between rows that are written together, against bank conflicts
constexpr int STRIDE = COLUMNS + PAD;
constexpr int MULTIPLIERS = 256, QUARTERS = MULTIPLIERS / ROWS;
constexpr int PARTS = (SPLIT - 1) * OWNED * STRIDE;  // floats that other blocks send
constexpr int FACTORS = QUARTERS * ROWS;             // floats of one tile

struct Arguments {
    const float *squares;    // [groups, room], of the rows that the norm is of
    const float *bias;       // [1, B or R, columns], or of `project` the gate
    float *next_squares;     // of `project`, or null
    const float *scale;      // [1, B or R, columns], of the next norm
    u16 *scaled, *out;       // [rows, columns]
    const float *cos, *sin;  // [positions, half]
    const int *positions, *slots, *starts;
    u16 *q, *k, *v;
    const u16 *linear_bias, *linear_gate;  // [columns], or null
    const int *table_at;  // [B], row of the tables for each sequence, or null: its own
    long long k_slot, k_head, k_token, v_slot, v_head, v_token;
    int rows, tokens, width, columns, groups, room, next_room, bias_stride, scale_stride, heads, kv_heads,
        half;
    float eps;  // of the norm
};

__device__ __forceinline__ int table_row(const Arguments &a, int row) {
    int sequence = row / a.tokens;
    return a.table_at ? a.table_at[sequence] : sequence;
}

// The two halves of a block's columns, but for `project`: gates and ups, or low and high halves of a head.
__device__ __forceinline__ int low_column(const Arguments &a) {
    int first = blockIdx.x * (COLUMNS / 2);
    return KIND == ROTARY_QKV ? first / a.half * 2 * a.half + first % a.half : first;
}
__device__ __forceinline__ int halves_apart(const Arguments &a) {
    return KIND == GATED_UP ? a.columns : a.half;
}

__device__ __forceinline__ void multipliers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

struct Memory {
    unsigned char *activations, *weights;  // tiles of 1024 bytes; 64 rows are read from any tile's start
    float *halves;       // [2, SUMS / 2, 128], where the activations were if there is one tile
    float *parts;        // [SPLIT - 1, OWNED, STRIDE], of `project`, of the other blocks
    float *staged;       // [SPLIT, OWNED, STRIDE], where the weights were if there is one tile
    float *factors;      // [QUARTERS, ROWS], of the others, of this tile
    u32 brought, freed;  // a barrier for each chunk, which each tile passes once; for each stage
    u32 met;             // all parts of the rows that are added up here are there
};
__device__ __forceinline__ Memory memory_of(unsigned char *memory) {
    Memory m;
    m.activations = memory, m.weights = memory + RING_BYTES;
    m.halves = reinterpret_cast<float *>(memory + (TILES > 1 ? STAGES * A_BYTES : 0));
    m.parts = reinterpret_cast<float *>(m.weights + CHUNKS * W_BYTES);
    m.staged = TILES > 1 ? m.parts + PARTS : reinterpret_cast<float *>(m.weights), m.factors = m.parts;
    constexpr int several = TILES > 1 ? (KIND == PROJECT ? SPLIT * OWNED * STRIDE : FACTORS) : 0;
    m.brought = shared(m.parts + (KIND == PROJECT ? PARTS : FACTORS) + several);
    m.freed = m.brought + 8 * CHUNKS, m.met = m.freed + 8 * CHUNKS;
    return m;
}

// Position of a multiplying thread: its group takes every second chunk, and stores 8 of every 16 rows.
struct Place {
    int group, thread;
    int row, pair;  // of the tile, that the thread stores: of every eight columns, pair and pair + 1
    __device__ __forceinline__ Place() {
        group = group_of(128), thread = threadIdx.x % 128;
        row = thread / 32 * 16 + group * 8 + thread % 32 / 4, pair = thread % 4 * 2;
    }
};

// Sums of squares for 1 / rms of the block's rows, from the partial sums that their producer left; fixed
// order.
__device__ __forceinline__ void leave_factors(const Arguments &a, const Memory &m, int first_row) {
    int row = threadIdx.x % ROWS, quarter = threadIdx.x / ROWS, each = (a.groups + QUARTERS - 1) / QUARTERS;
    int end = min(a.groups, (quarter + 1) * each);
    const float *from = a.squares + first_row + row;
    float sum = 0.0f;
#pragma unroll 16
    for (int group = quarter * each; group < end; ++group) sum += from[group * a.room];
    m.factors[quarter * ROWS + row] = sum;
}
__device__ __forceinline__ float factor_of(const Arguments &a, const Memory &m, int row, float share) {
    float sum =
        (m.factors[row] + m.factors[ROWS + row]) + (m.factors[2 * ROWS + row] + m.factors[3 * ROWS + row]);
    return rsqrtf(sum * share + a.eps);
}

// Of a row, besides its sums, and read before they are there: the biases of both halves of its columns, and
// the share of one column in the mean of squares.
struct Shift {
    float2 low[COLUMNS / 16], high[COLUMNS / 16];
    float share;
};
__device__ __forceinline__ Shift shift_of(const Arguments &a, int first_row, Place p) {
    Shift shift;
    shift.share = 1.0f / a.width;
    int at = first_row + p.row;
    bool any = a.bias && at < a.rows;
    const float2 none = make_float2(0, 0);
    const float *bias = a.bias + (any ? table_row(a, at) * a.bias_stride + low_column(a) + p.pair : 0);
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
        shift.low[i] = any ? *reinterpret_cast<const float2 *>(bias + 8 * i) : none;
        shift.high[i] = any ? *reinterpret_cast<const float2 *>(bias + halves_apart(a) + 8 * i) : none;
    }
    return shift;
}

__device__ __forceinline__ float activated(float x) {
    return ACTIVATION == NONE ? x : ACTIVATION == SILU ? silu(x) : gelu(x);
}
__device__ __forceinline__ float4 wide(uint2 four) {
    return make_float4(wide(four.x & 0xffff), wide(four.x >> 16), wide(four.y & 0xffff), wide(four.y >> 16));
}

#if KIND == BIASED
struct Biases {
    u32 pairs[COLUMNS / 8];
};
__device__ __forceinline__ Biases biases_of(const Arguments &a, Place p) {
    Biases biases;
    const u16 *from = a.linear_bias + blockIdx.x * COLUMNS + p.pair;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; ++i)
        biases.pairs[i] = a.linear_bias ? *reinterpret_cast<const u32 *>(from + 8 * i) : 0;
    return biases;
}
__device__ __forceinline__ void store(const Arguments &a, float (&v)[SUMS / 2], int first_row, Place p,
                                      const Biases &biases) {
    int at = first_row + p.row;
    if (at >= a.rows) return;
    u16 *to = a.out + (long long)at * a.columns + blockIdx.x * COLUMNS + p.pair;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; ++i) {
        u32 pair = biases.pairs[i];
        *reinterpret_cast<u32 *>(to + 8 * i) = pack(activated(v[2 * i] + wide(u16(pair & 0xffff))),
                                                    activated(v[2 * i + 1] + wide(u16(pair >> 16))));
    }
}
#endif

#if KIND == GATED_UP
__device__ __forceinline__ void store(const Arguments &a, const Memory &m, float (&v)[SUMS / 2],
                                      int first_row, Place p, const Shift &shift) {
    int column = blockIdx.x * (COLUMNS / 2) + p.pair, at = first_row + p.row;
    if (at >= a.rows) return;
    float factor = factor_of(a, m, p.row, shift.share);
    u16 *to = a.out + (long long)at * a.columns + column;
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
        float2 gates = shift.low[i], ups = shift.high[i];
        float first = activated(v[2 * i] * factor + gates.x) * (v[SUMS / 4 + 2 * i] * factor + ups.x);
        float second = activated(v[2 * i + 1] * factor + gates.y) * (v[SUMS / 4 + 2 * i + 1] * factor + ups.y);
        *reinterpret_cast<u32 *>(to + 8 * i) = pack(first, second);
    }
}
#endif

#if KIND == ROTARY_QKV
// Rotation and destination of a row; both are known before the previous launch has ended.
struct Turn {
    float2 cosine[COLUMNS / 16], sine[COLUMNS / 16];
    u16 *to;
};
__device__ __forceinline__ Turn turn_of(const Arguments &a, int first_row, Place p) {
    int at = first_row + p.row, first = blockIdx.x * (COLUMNS / 2), head = first / a.half,
        j = first % a.half + p.pair;
    Turn turn;
    turn.to = nullptr;
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i)
        turn.cosine[i] = make_float2(1, 1), turn.sine[i] = make_float2(0, 0);
    if (at >= a.rows) return turn;
    int sequence = at / a.tokens, token = at % a.tokens, kv_head = head - a.heads;
    if (kv_head < a.kv_heads) {
        long long angle = (long long)(a.positions[sequence] + token) * a.half + j;
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; ++i) {
            turn.cosine[i] = *reinterpret_cast<const float2 *>(a.cos + angle + 8 * i);
            turn.sine[i] = *reinterpret_cast<const float2 *>(a.sin + angle + 8 * i);
        }
    }
    if (kv_head < 0) turn.to = a.q + ((long long)at * a.heads + head) * 2 * a.half + j;
    else {
        long long slot = a.slots[sequence], place = a.starts[sequence] + token;
        turn.to = kv_head < a.kv_heads
                      ? a.k + slot * a.k_slot + kv_head * a.k_head + place * a.k_token + j
                      : a.v + slot * a.v_slot + (kv_head - a.kv_heads) * a.v_head + place * a.v_token + j;
    }
    return turn;
}
__device__ __forceinline__ void store(const Arguments &a, const Memory &m, float (&v)[SUMS / 2],
                                      int first_row, Place p, const Turn &turn, const Shift &shift) {
    if (first_row + p.row >= a.rows) return;
    float factor = factor_of(a, m, p.row, shift.share);
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
        float2 add_low = shift.low[i], add_high = shift.high[i];
        float2 low = make_float2(v[2 * i] * factor + add_low.x, v[2 * i + 1] * factor + add_low.y);
        float2 high = make_float2(v[SUMS / 4 + 2 * i] * factor + add_high.x,
                                  v[SUMS / 4 + 2 * i + 1] * factor + add_high.y);
        float2 c = turn.cosine[i], s = turn.sine[i];
        *reinterpret_cast<u32 *>(turn.to + 8 * i) =
            pack(low.x * c.x - high.x * s.x, low.y * c.y - high.y * s.y);
        *reinterpret_cast<u32 *>(turn.to + a.half + 8 * i) =
            pack(high.x * c.x + low.x * s.x, high.y * c.y + low.y * s.y);
    }
}
#endif

#if KIND == PROJECT
constexpr int GROUP = 16;           // columns that share a partial sum of squares
constexpr int QUADS = COLUMNS / 4;  // of a row
constexpr int TIMES = (OWNED * QUADS + MULTIPLIERS - 1) / MULTIPLIERS;  // quads that a thread reduces
static_assert(OWNED * QUADS % 32 == 0, "whole warps add up");

static_assert(TILES > 1 || SPLIT * OWNED * STRIDE * 4 <= CHUNKS * W_BYTES, "staged where the weights were");

// Number of the `rows` rows that this block reduces.
__device__ __forceinline__ int owned_by(int rank, int rows) {
    return max(min(rows - rank * OWNED, OWNED), 0);
}

// All-to-all within the cluster: each block receives the rows that it reduces. rows: in this tile.
__device__ __forceinline__ void exchange(const Memory &m, float (&v)[SUMS / 2], int rank, Place p, int rows,
                                         bool first) {
    if (TILES > 1 && !first) __syncwarp(), cluster_wait();  // all have reduced the last tile: memory is free
    if (p.row < rows)
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; ++i)
            *reinterpret_cast<float2 *>(m.staged + p.row * STRIDE + 8 * i + p.pair) =
                make_float2(v[2 * i], v[2 * i + 1]);
    show_engines();
    multipliers_meet();
    if (TILES == 1 || first) cluster_wait();  // all blocks have started, so their shared memory exists
    int other = threadIdx.x;
    if (other < SPLIT && other != rank && owned_by(other, rows))
        send(at_rank(shared(m.parts + (rank - (rank > other)) * OWNED * STRIDE), other),
             shared(m.staged + other * OWNED * STRIDE), owned_by(other, rows) * STRIDE * 4,
             at_rank(m.met, other));
    __syncwarp();
}

// Bytes that this block receives for the rows that it reduces; rows: from the tile's first row on.
__device__ __forceinline__ u32 sent_to(int rank, int rows) {
    return (SPLIT - 1) * owned_by(rank, min(rows, ROWS)) * STRIDE * 4;
}

struct Quad {  // four neighbouring columns of the residual row, and the factors of its update
    int row, column;
    uint2 before;
    float4 gate, scale, bias;
};
__device__ __forceinline__ Quad quad_of(const Arguments &a, int number, int first_row, int rank) {
    Quad quad;
    int there = owned_by(rank, min(a.rows - first_row, ROWS));
    quad.row = number < there * QUADS ? first_row + rank * OWNED + number / QUADS : a.rows;
    quad.column = blockIdx.x / SPLIT * COLUMNS + number % QUADS * 4;
    quad.before = make_uint2(0, 0);
    quad.gate = make_float4(1, 1, 1, 1), quad.scale = quad.bias = make_float4(0, 0, 0, 0);
    if (quad.row < a.rows) {
        int of_tables = table_row(a, quad.row);
        quad.before = *reinterpret_cast<const uint2 *>(a.out + (long long)quad.row * a.columns + quad.column);
        if (LINEAR && a.linear_bias)
            quad.bias = wide(*reinterpret_cast<const uint2 *>(a.linear_bias + quad.column));
        if (LINEAR && a.linear_gate)
            quad.gate = wide(*reinterpret_cast<const uint2 *>(a.linear_gate + quad.column));
        if (a.bias)
            quad.gate = *reinterpret_cast<const float4 *>(a.bias + of_tables * a.bias_stride + quad.column);
        if (a.scaled)
            quad.scale = *reinterpret_cast<const float4 *>(a.scale + of_tables * a.scale_stride + quad.column);
    }
    return quad;
}
__device__ __forceinline__ void store(const Arguments &a, const Memory &m, const Quad &quad, int number,
                                      int rank) {
    if (number >= OWNED * QUADS) return;
    int within = number % QUADS;
    const float *from = m.parts + number / QUADS * STRIDE + within * 4;
    const float *own = m.staged + (rank * OWNED + number / QUADS) * STRIDE + within * 4;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int part = 0; part < SPLIT; ++part) {
        const float *at = part == rank ? own : from + (part - (part > rank)) * OWNED * STRIDE;
        float4 other = *reinterpret_cast<const float4 *>(at);
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    if (LINEAR)
        sum.x += quad.bias.x, sum.y += quad.bias.y, sum.z += quad.bias.z, sum.w += quad.bias.w;
    u32 first = pack(wide(quad.before.x & 0xffff) + sum.x * quad.gate.x,
                     wide(quad.before.x >> 16) + sum.y * quad.gate.y);
    u32 second = pack(wide(quad.before.y & 0xffff) + sum.z * quad.gate.z,
                      wide(quad.before.y >> 16) + sum.w * quad.gate.w);
    float v[4] = {wide(first & 0xffff), wide(first >> 16), wide(second & 0xffff), wide(second >> 16)};
    float squares = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
#pragma unroll
    for (int far = QUADS / 2; far; far /= 2) squares += __shfl_xor_sync(~0u, squares, far);
    if (quad.row >= a.rows) return;
    long long at = (long long)quad.row * a.columns + quad.column;
    *reinterpret_cast<uint2 *>(a.out + at) = make_uint2(first, second);
    if (a.scaled)
        *reinterpret_cast<uint2 *>(a.scaled + at) =
            make_uint2(pack(v[0] * (1.0f + quad.scale.x), v[1] * (1.0f + quad.scale.y)),
                       pack(v[2] * (1.0f + quad.scale.z), v[3] * (1.0f + quad.scale.w)));
    if (a.next_squares && within < COLUMNS / GROUP)
        a.next_squares[(blockIdx.x / SPLIT * (COLUMNS / GROUP) + within) * a.next_room + quad.row] =
            within ? 0.0f : squares;
}
#endif

// TMA loads, issued by one thread: weights at once, together with the barriers of the first tile; activations
// after the previous launch has written them.
__device__ __forceinline__ void bring_weights(const Arguments &a, const Memory &m, const TensorMap &w_map,
                                              int first_chunk, int chunks) {
    u64 policy = once();
    u32 weights = shared(m.weights);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        u32 barrier = m.brought + 8 * chunk, to = weights + chunk * W_BYTES;
        int x = (first_chunk + chunk) * CHUNK;
        expect(barrier, A_BYTES + W_BYTES);
#if KIND == PROJECT || KIND == BIASED
        load_tile(to, w_map, x, blockIdx.x / SPLIT * COLUMNS, barrier, policy);
#else
        load_tile(to, w_map, x, low_column(a), barrier, policy);
        load_tile(to + W_BYTES / 2, w_map, x, low_column(a) + halves_apart(a), barrier, policy);
#endif
    }
}
__device__ __forceinline__ void bring_activations(const Memory &m, const TensorMap &a_map, int first_chunk,
                                                  int chunks, int first_row, int tile) {
    u64 policy = often();
    u32 activations = shared(m.activations);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        int number = tile * chunks + chunk, stage = number % STAGES, round = number / STAGES;
        u32 barrier = m.brought + 8 * chunk;
        if (round) await(m.freed + 8 * stage, round - 1);
        if (TILES > 1 && tile) expect(barrier, A_BYTES);
        load_tile(activations + stage * A_BYTES, a_map, (first_chunk + chunk) * CHUNK, first_row, barrier,
                  policy);
    }
}

// One tile's sums over this group's chunks. before: chunks of earlier tiles.
__device__ __forceinline__ void multiply_tile(const Memory &m, float (&c)[SUMS], int chunks, int before,
                                              int tile, Place p) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) c[i] = 0.0f;
    u64 left = tile_at(shared(m.activations)), right = tile_at(shared(m.weights));
    constexpr bool REUSED = TILES > 1 || STAGES < CHUNKS;
#pragma unroll
    for (int chunk = p.group, time = 0; time < (CHUNKS + 1) / 2; chunk += 2, ++time) {
        if (chunk >= chunks) break;
        await(m.brought + 8 * chunk, tile);
        begin_products();
        u64 from = left + (before + chunk) % STAGES * (A_BYTES / 16), by = right + chunk * (W_BYTES / 16);
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(c, from + 2 * k, by + 2 * k);
        commit_products();
        if (REUSED && time) {  // products of the chunk before are done
            wait_for_products<1>();
            if (threadIdx.x % 32 == 0) arrive(m.freed + 8 * ((before + chunk - 2) % STAGES));
        }
    }
    wait_for_products();
    settle(c);
    if (TILES > 1 && threadIdx.x % 32 == 0)
        arrive(m.freed + 8 * ((before + chunks - 1 - (chunks - 1 - p.group) % 2) % STAGES));
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 32, 1)
    product(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap w_map,
            const Arguments a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Memory m = memory_of(memory);
    int rank = blockIdx.x % SPLIT, base = blockIdx.y * TILES * ROWS;
    int tiles = min(TILES, (a.rows - base + ROWS - 1) / ROWS);
    int first_chunk = rank * INNER / SPLIT, chunks = (rank + 1) * INNER / SPLIT - first_chunk;

    if (threadIdx.x == MULTIPLIERS) {
        let_next_begin();
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            prepare(m.brought + 8 * chunk, 1), prepare(m.freed + 8 * chunk, 4);
#if KIND == PROJECT
        prepare(m.met, 1);
#endif
        prepared();
        ask_for(a_map);
#if KIND == PROJECT
        expect(m.met, sent_to(rank, a.rows - base));
#endif
    }
    __syncthreads();
    if (KIND == PROJECT) cluster_arrive();

    if (threadIdx.x >= MULTIPLIERS) {
        if (threadIdx.x == MULTIPLIERS) {
            bring_weights(a, m, w_map, first_chunk, chunks);
            after_previous();
        }
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            if (threadIdx.x == MULTIPLIERS)
                bring_activations(m, a_map, first_chunk, chunks, base + tile * ROWS, tile);
            __syncwarp();
            if (KIND == PROJECT) cluster_wait(), cluster_arrive();
        }
        if (KIND == PROJECT) cluster_wait();
        return;
    }

    Place place;
#if KIND == ROTARY_QKV
    Turn turn = turn_of(a, base, place);
#elif KIND == BIASED
    Biases biases = biases_of(a, place);
#endif
    after_previous();
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        int first_row = base + tile * ROWS;
#if KIND == PROJECT
        Quad quads[TIMES];
#pragma unroll
        for (int time = 0; time < TIMES; ++time)
            quads[time] = quad_of(a, time * MULTIPLIERS + threadIdx.x, first_row, rank);
#elif KIND != BIASED
        if (TILES > 1) m.factors = m.parts + tile % 2 * FACTORS;  // the others may still be read
        leave_factors(a, m, first_row);
        Shift shift = shift_of(a, first_row, place);
#endif
        float c[SUMS];
        multiply_tile(m, c, chunks, tile * chunks, tile, place);

        // Each group gives the other the rows that it does not store.
        multipliers_meet();  // all threads have read the activations, and the halves of the tile before
        float v[SUMS / 2], *given = m.halves + place.group * (SUMS / 2 * 128),
                           *got = m.halves + (1 - place.group) * (SUMS / 2 * 128);
#pragma unroll
        for (int i = 0; i < SUMS / 2; ++i) {
            float own = c[i / 2 * 4 + i % 2], other = c[i / 2 * 4 + 2 + i % 2];
            v[i] = place.group ? other : own;
            given[i * 128 + place.thread] = place.group ? own : other;
        }
        multipliers_meet();
#pragma unroll
        for (int i = 0; i < SUMS / 2; ++i) v[i] += got[i * 128 + place.thread];

#if KIND == PROJECT
        exchange(m, v, rank, place, min(a.rows - first_row, ROWS), tile == 0);
        await(m.met, tile);
        __syncwarp();
        bool last = tile + 1 == tiles;
        if (TILES > 1 && !last && threadIdx.x == 0) expect(m.met, sent_to(rank, a.rows - first_row - ROWS));
        if (TILES == 1 || last) cluster_arrive();  // this block has received its rows, which it still reads
#pragma unroll
        for (int time = 0; time < TIMES; ++time)
            store(a, m, quads[time], time * MULTIPLIERS + threadIdx.x, rank);
        if (TILES > 1 && !last) __syncwarp(), cluster_arrive();
#elif KIND == GATED_UP
        store(a, m, v, first_row, place, shift);
#elif KIND == BIASED
        store(a, v, first_row, place, biases);
#else
        store(a, m, v, first_row, place, turn, shift);
        if (TILES > 1 && tile + 1 < tiles) turn = turn_of(a, first_row + ROWS, place);
#endif
    }
    if (KIND == PROJECT) cluster_wait();  // wait until the other blocks have received this block's rows
}
