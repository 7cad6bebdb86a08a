// Attention of a chunk's few tokens over a prefix and over themselves, in one launch, for sm_90:
// kernels/attention.py has the plain twin.
//
// The blocks of a cluster share one head: each takes one part of the keys, the last one the tail, and SIDES
// blocks each make some columns of the result from the same weights. Keys and values of the prefix are asked
// for before the launch waits for the one before it, which only writes queries and the tail. What the parts
// found meets in the shared memory of the cluster, a few rows for each of its blocks, and is added up in the
// parts' order.
//
// Macros: SPLIT parts, KEYS of a tile of keys (80, 128 or 192), SIDES (2 or 4, of so many columns of a head),
// TALL rows of a tile of queries (a multiple of 8 up to 64).

#include "hopper.cuh"

constexpr int PAD = 8;  // between rows that are written at the same time: other banks
constexpr int ROWS = 64, OWNED = ROWS / SPLIT, HEAD = 256, WIDE = HEAD / SIDES, PANELS = HEAD / 64;
constexpr u32 Q_BYTES = TALL * 128, K_BYTES = KEYS * 128;  // of a panel of 64 columns

constexpr u32 RESULT_BYTES = ROWS * (WIDE + PAD) * 4;
constexpr u32 INPUT_BYTES = PANELS * Q_BYTES + WIDE / 64 * K_BYTES;
constexpr u32 OWN_BYTES = INPUT_BYTES > RESULT_BYTES ? INPUT_BYTES : RESULT_BYTES;

struct Arguments {
    u16 *out;  // [B, tokens, heads * HEAD]
    const int *slots, *lengths, *tails;
    float scale;  // of the scores, times log2(e)
    int tokens, heads, groups, alone;
};

__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ void multipliers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

// c += queries (64 x 16) @ keys (KEYS x 16).T
__device__ __forceinline__ void multiply(float (&c)[KEYS / 2], u64 queries, u64 keys) {
#if KEYS == 80
    asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {" NAMES_40
                 "}, %40, %41, 1, 1, 1, 0, 0;"
                 : SUMS_40(c)
                 : "l"(queries), "l"(keys));
#elif KEYS == 192
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" NAMES_96
                 "}, %96, %97, 1, 1, 1, 0, 0;"
                 : SUMS_96(c)
                 : "l"(queries), "l"(keys));
#else
    static_assert(KEYS == 128, "tiles of 80, 128 or 192 keys");
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : SUMS_64(c)
                 : "l"(queries), "l"(keys));
#endif
}
// c += weights (64 x 16, in registers) @ values (16 x WIDE)
__device__ __forceinline__ void multiply(float (&c)[WIDE / 2], const u32 (&a)[4], u64 values) {
#if SIDES == 4
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SUMS_32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(values));
#else
    static_assert(SIDES == 2, "sides of 64 or 128 columns");
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SUMS_64(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(values));
#endif
}
struct Memory {
    unsigned char *keys, *queries, *values;  // panels of 64 columns
    float *results;                          // [SPLIT, OWNED, WIDE + PAD], where the keys were
    float *own;                              // [ROWS, WIDE + PAD], where queries and values were
    u32 queries_here, keys_here, values_here, keys_read, values_read, met;
};
__device__ __forceinline__ Memory memory_of(unsigned char *memory) {
    Memory m;
    m.keys = memory, m.queries = m.keys + PANELS * K_BYTES, m.values = m.queries + PANELS * Q_BYTES;
    m.results = reinterpret_cast<float *>(m.keys), m.own = reinterpret_cast<float *>(m.queries);
    m.queries_here = shared(m.queries + OWN_BYTES), m.keys_here = m.queries_here + 8,
    m.values_here = m.keys_here + 8;
    m.keys_read = m.values_here + 8, m.values_read = m.keys_read + 8, m.met = m.values_read + 8;
    return m;
}

static_assert(RESULT_BYTES <= PANELS * K_BYTES, "results lie where the keys were");

struct Part {
    int low, high, slot;
    bool tail;
    __device__ __forceinline__ int tiles() const { return (max(high - low, 0) + KEYS - 1) / KEYS; }
};
__device__ __forceinline__ Part part_of(const Arguments &a, int number, int sequence) {
    Part part;
    part.tail = number == SPLIT - 1;
    int length = a.lengths[sequence], share = (length + SPLIT - 2) / (SPLIT - 1);
    part.low = part.tail ? 0 : number * share;
    part.high = part.tail ? a.tails[sequence] : min(part.low + share, length);
    part.slot = part.tail ? sequence : a.slots[sequence];
    return part;
}

__device__ __forceinline__ void bring(const Memory &m, const TensorMap &keys, const TensorMap &values,
                                      const Part &part, int tile, int kv_head, int side) {
    int first = part.low + tile * KEYS;
    if (tile) await(m.keys_read, tile - 1);
    expect(m.keys_here, PANELS * K_BYTES);
    for (int panel = 0; panel < PANELS; ++panel)
        load_tile(shared(m.keys) + panel * K_BYTES, keys, panel * 64, first, kv_head, part.slot, m.keys_here);
    if (tile) await(m.values_read, tile - 1);
    expect(m.values_here, WIDE / 64 * K_BYTES);
    for (int panel = 0; panel < WIDE / 64; ++panel)
        load_tile(shared(m.values) + panel * K_BYTES, values, side * WIDE + panel * 64, first, kv_head,
                  part.slot, m.values_here);
}

// Values beyond the last key of a part may be anything, and nothing times anything must be nothing.
__device__ __forceinline__ void clear_beyond(const Memory &m, int keys) {
    int beyond = (KEYS - keys) * 8;
    for (int at = threadIdx.x; at < beyond * (WIDE / 64); at += 128)
        *reinterpret_cast<uint4 *>(m.values + at / beyond * K_BYTES + keys * 128 + at % beyond * 16) =
            make_uint4(0, 0, 0, 0);
    show_engines();
    multipliers_meet();
}

extern "C" __global__ void __launch_bounds__(160, 1)
    attend(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
           const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap k_tail_map,
           const __grid_constant__ TensorMap v_tail_map, const Arguments a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Memory m = memory_of(memory);
    int rank = blockIdx.x, head = blockIdx.y / SIDES, side = blockIdx.y % SIDES, kv_head = head / a.groups;
    int tiles = (a.tokens + ROWS - 1) / ROWS, sequence = blockIdx.z / tiles,
        first = blockIdx.z % tiles * ROWS;

    if (threadIdx.x == 128) {
        prepare(m.queries_here, 1), prepare(m.keys_here, 1), prepare(m.values_here, 1);
        prepare(m.keys_read, 4), prepare(m.values_read, 4), prepare(m.met, 1);
        prepared();
        ask_for(q_map), ask_for(k_tail_map), ask_for(v_tail_map);
        expect(m.met, RESULT_BYTES);
    }
    __syncthreads();
    Part part = part_of(a, rank, sequence);

    if (threadIdx.x >= 128) {
        cluster_arrive();
        if (threadIdx.x == 128) {
            let_next_begin();
            if (!part.tail && part.tiles()) bring(m, k_map, v_map, part, 0, kv_head, side);
            after_previous();
            expect(m.queries_here, PANELS * Q_BYTES);
            for (int panel = 0; panel < PANELS; ++panel)
                load_tile(shared(m.queries) + panel * Q_BYTES, q_map, head * HEAD + panel * 64,
                          sequence * a.tokens + first, m.queries_here);
            if (part.tail)
                for (int tile = 0; tile < part.tiles(); ++tile)
                    bring(m, k_tail_map, v_tail_map, part, tile, kv_head, side);
            else
                for (int tile = 1; tile < part.tiles(); ++tile)
                    bring(m, k_map, v_map, part, tile, kv_head, side);
        }
        __syncwarp();
        cluster_wait();
        cluster_arrive();
        cluster_wait();
        return;
    }

    after_previous();
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
    int visible[2];  // keys of the tail that the thread's two rows see
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
        visible[lower] = part.tail && first + row + 8 * lower < a.alone ? a.alone : 0x7fffffff;
    float top[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f}, result[WIDE / 2];
#pragma unroll
    for (int i = 0; i < WIDE / 2; ++i) result[i] = 0.0f;
    u64 queries = tile_at(shared(m.queries)), keys = tile_at(shared(m.keys)),
        values = tile_at(shared(m.values), K_BYTES);
    await(m.queries_here, 0);  // also where there is nothing to do: their place is used again
#pragma unroll 1
    for (int tile = 0; tile < part.tiles(); ++tile) {
        int start = part.low + tile * KEYS, here = min(part.high - start, KEYS);
        float s[KEYS / 2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) s[i] = 0.0f;
        await(m.keys_here, tile);
        begin_products();
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                multiply(s, queries + panel * (Q_BYTES / 16) + 2 * k, keys + panel * (K_BYTES / 16) + 2 * k);
        end_products();
        settle(s);
        if (threadIdx.x % 32 == 0) arrive(m.keys_read);
        if (tile + 1 == part.tiles()) cluster_arrive();  // results may come to where the keys were
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            int end = min(here, visible[lower] - start);
            float highest = top[lower];
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float &score = s[4 * i + 2 * lower + j];
                    score = 8 * i + pair + j < end ? score * a.scale : -__int_as_float(0x7f800000);
                    highest = fmaxf(highest, score);
                }
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            float shrink = power(top[lower] - highest), sum = 0.0f;
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float &score = s[4 * i + 2 * lower + j];
                    score = power(score - highest);
                    sum += score;
                }
            top[lower] = highest, total[lower] = total[lower] * shrink + sum;
            if (tile)
#pragma unroll
                for (int i = 0; i < WIDE / 8; ++i)
                    result[4 * i + 2 * lower] *= shrink, result[4 * i + 2 * lower + 1] *= shrink;
        }
        u32 weights[KEYS / 16][4];
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        await(m.values_here, tile);
        if (here < KEYS) clear_beyond(m, here);
        begin_products();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) multiply(result, weights[k], values + k * (2048 / 16));
        end_products();
        settle(result);
        if (threadIdx.x % 32 == 0) arrive(m.values_read);
    }

    if (!part.tiles()) cluster_arrive();
    multipliers_meet();  // nobody reads queries and values any more
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        total[lower] += __shfl_xor_sync(~0u, total[lower], 1);
        total[lower] += __shfl_xor_sync(~0u, total[lower], 2);
        float *to = m.own + (row + 8 * lower) * (WIDE + PAD);
#pragma unroll
        for (int i = 0; i < WIDE / 8; ++i)
            *reinterpret_cast<float2 *>(to + 8 * i + pair) =
                make_float2(result[4 * i + 2 * lower], result[4 * i + 2 * lower + 1]);
        if (pair == 0) *reinterpret_cast<float2 *>(to + WIDE) = make_float2(top[lower], total[lower]);
    }
    show_engines();
    multipliers_meet();
    cluster_wait();  // all are done with their keys
    if (threadIdx.x < SPLIT)
        send(at_rank(shared(m.results) + rank * (RESULT_BYTES / SPLIT), threadIdx.x),
             shared(m.own) + threadIdx.x * (RESULT_BYTES / SPLIT), RESULT_BYTES / SPLIT,
             at_rank(m.met, threadIdx.x));
    await(m.met, 0);
    __syncwarp();
    cluster_arrive();

#pragma unroll
    for (int at = threadIdx.x; at < OWNED * WIDE / 8; at += 128) {
        int owned = at / (WIDE / 8), column = at % (WIDE / 8) * 8, token = first + rank * OWNED + owned;
        float highest = -1e30f, sum = 0.0f, made[8] = {};
#pragma unroll
        for (int p = 0; p < SPLIT; ++p)
            highest = fmaxf(highest, m.results[(p * OWNED + owned) * (WIDE + PAD) + WIDE]);
#pragma unroll
        for (int p = 0; p < SPLIT; ++p) {
            const float *from = m.results + (p * OWNED + owned) * (WIDE + PAD);
            float by = power(from[WIDE] - highest);
            sum += by * from[WIDE + 1];
            float4 one = *reinterpret_cast<const float4 *>(from + column),
                   two = *reinterpret_cast<const float4 *>(from + column + 4);
            made[0] += by * one.x, made[1] += by * one.y, made[2] += by * one.z, made[3] += by * one.w;
            made[4] += by * two.x, made[5] += by * two.y, made[6] += by * two.z, made[7] += by * two.w;
        }
        if (token >= a.tokens) continue;
        float by = 1.0f / fmaxf(sum, 1e-30f);
        *reinterpret_cast<uint4 *>(
            a.out + ((long long)(sequence * a.tokens + token) * a.heads + head) * HEAD + side * WIDE +
            column) = make_uint4(pack(made[0] * by, made[1] * by), pack(made[2] * by, made[3] * by),
                                 pack(made[4] * by, made[5] * by), pack(made[6] * by, made[7] * by));
    }
    cluster_wait();  // all have what was sent from here
}
