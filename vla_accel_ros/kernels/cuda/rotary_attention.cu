// Attention of fresh queries, keys and values, for several sequences of a few dozen tokens, over a prefix and
// over themselves, in one launch, for sm_90: kernels/reference/attention.py has the plain reference.
//
// A block takes HEADS query heads that share a key head, with four warps each, and one range of the keys
// (split-K), so that all heads use each key tile that it loads. Tail keys come after the prefix keys, from
// the next multiple of 8 on, and a range may span both. TMA loads of the prefix start before the launch waits
// for the product; queries and tail keys are rotated on their way into shared memory. The last tile of a
// range is computed first, so that its tail is filled in while the registers are free. The blocks of a
// cluster exchange their partial results through shared memory, some rows for each block, in bfloat16 and
// divided by their sum of weights, and combine them in the order of the ranges.
//
// Macros: SPLIT ranges, KEYS of a tile (64, 80, 96 or 112), HEADS (1 or 2), STAGES tiles in flight (2 or
// more), TALL rows of a query tile (a multiple of 8 up to 64).

#include "hopper.cuh"

constexpr int ROWS = 64, HEAD = 256, PANELS = HEAD / 64, CHUNKS = HEAD / 16;  // pairs of 16 bytes of a row
constexpr int MULTIPLIERS = 128 * HEADS, BRINGERS = HEADS == 1 ? 32 : 128;
constexpr int AT_ONCE = MULTIPLIERS / CHUNKS, ROUNDS = 4;  // rows rotated at a time; repetitions
constexpr int OWNED = (TALL + SPLIT - 1) / SPLIT;          // rows of a head that a block combines
constexpr u32 K_BYTES = KEYS * 128, TILE_BYTES = PANELS * K_BYTES, Q_BYTES = TALL * 128;
constexpr u32 ROW_BYTES = HEAD * 2 + 16;  // of a result, with its maximum and its sum of weights
constexpr u32 GIVEN_BYTES = OWNED * ROW_BYTES;
constexpr u32 OWN_BYTES = (TALL * ROW_BYTES + 1023) / 1024 * 1024;  // at least the queries' size

static_assert(OWN_BYTES >= PANELS * Q_BYTES, "a head's result lies where its queries were");
static_assert(SPLIT * HEADS * GIVEN_BYTES <= (STAGES - 1) * TILE_BYTES, "results lie where tiles were");

// Rows of a head that a block of the cluster combines.
__device__ __forceinline__ int owned(int rank) { return max(min(OWNED, TALL - rank * OWNED), 0); }

struct Arguments {
    const u16 *y;            // [B, tokens, heads + 2 kv_heads, HEAD]
    const float *cos, *sin;  // [positions, HEAD / 2]
    u16 *out;                // [B, tokens, heads, HEAD]
    const int *slots, *lengths;
    float scale;  // of the scores, times log2(e)
    int tokens, heads, kv_heads, alone;
    __device__ __forceinline__ int columns() const { return (heads + 2 * kv_heads) * HEAD; }
};

__device__ __forceinline__ void multipliers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLIERS) : "memory");
}
__device__ __forceinline__ void group_meets(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

struct Memory {
    unsigned char *own;    // [HEADS, OWN_BYTES]: queries, panels of 64 columns, then what was found
    unsigned char *tiles;  // [STAGES, TILE_BYTES]: of keys and of values, panels of 64 columns
    unsigned char *found;  // [SPLIT, HEADS, OWNED, ROW_BYTES], where tiles but the last of values were
    u32 here, read, met;   // barriers: of the tiles, STAGES each
};
__device__ __forceinline__ Memory memory_of(unsigned char *memory) {
    Memory m;
    m.own = memory, m.tiles = m.own + HEADS * OWN_BYTES, m.found = m.tiles + TILE_BYTES;
    m.here = shared(m.tiles + STAGES * TILE_BYTES), m.read = m.here + 8 * STAGES, m.met = m.read + 8 * STAGES;
    return m;
}

// A range of keys, low to high; the tail's begin at `tail`.
struct Part {
    int length, tail, low, high, tiles;
    __device__ __forceinline__ int start(int tile) const { return low + (tiles - 1 - tile) * KEYS; }
    __device__ __forceinline__ bool of_tail(int key) const { return key >= tail && key < high; }
};
__device__ __forceinline__ Part part_of(const Arguments &a, int number, int sequence) {
    Part part;
    part.length = a.lengths[sequence], part.tail = (part.length + 7) / 8 * 8;
    int all = part.tail + a.tokens, share = (all + 8 * SPLIT - 1) / (8 * SPLIT) * 8;
    part.low = number * share, part.high = min(part.low + share, all);
    part.tiles = (max(part.high - part.low, 0) + KEYS - 1) / KEYS;
    return part;
}
// Keys of tile t are item 2 t, values item 2 t + 1; the last item of all is in place 0.
__device__ __forceinline__ int place_of(const Part &part, int item) {
    return (2 * part.tiles - 1 - item) % STAGES;
}

__device__ __forceinline__ void bring(const Memory &m, const TensorMap &keys, const TensorMap &values,
                                      const Part &part, int kv_head, int slot) {
#pragma unroll 1
    for (int item = 0; item < 2 * part.tiles; ++item) {
        int place = place_of(part, item), start = part.start(item / 2);
        u32 here = m.here + 8 * place, to = shared(m.tiles) + place * TILE_BYTES;
        if (item >= STAGES) await(m.read + 8 * place, item / STAGES - 1);
        if (start >= part.length) {  // the tile has no prefix keys
            arrive(here);
            continue;
        }
        expect(here, TILE_BYTES);
        for (int panel = 0; panel < PANELS; ++panel)
            load_tile(to + panel * K_BYTES, item % 2 ? values : keys, panel * 64, start, kv_head, slot, here);
    }
}

// Eight columns of each half of a head's row, for the two swizzled 16-byte units that they are stored in.
struct Pair {
    uint4 low, high;
};
struct Angles {
    float4 cos[2], sin[2];
};
__device__ __forceinline__ Angles angles_of(const Arguments &a, int position, int chunk) {
    long long at = (long long)position * (HEAD / 2) + chunk * 8;
    const float4 *cos = reinterpret_cast<const float4 *>(a.cos + at),
                 *sin = reinterpret_cast<const float4 *>(a.sin + at);
    return {{cos[0], cos[1]}, {sin[0], sin[1]}};
}
__device__ __forceinline__ Pair pair_of(const u16 *row, int chunk) {
    const uint4 *from = reinterpret_cast<const uint4 *>(row);
    return {from[chunk], from[chunk + CHUNKS]};
}
__device__ __forceinline__ void turn(u32 &low, u32 &high, float cos, float sin, float next_cos,
                                     float next_sin) {
    float one = wide(low & 0xffff), two = wide(high & 0xffff), one_next = wide(low >> 16),
          two_next = wide(high >> 16);
    low = pack(one * cos - two * sin, one_next * next_cos - two_next * next_sin);
    high = pack(two * cos + one * sin, two_next * next_cos + one_next * next_sin);
}
__device__ __forceinline__ Pair turned(Pair pair, const Angles &by) {
    turn(pair.low.x, pair.high.x, by.cos[0].x, by.sin[0].x, by.cos[0].y, by.sin[0].y);
    turn(pair.low.y, pair.high.y, by.cos[0].z, by.sin[0].z, by.cos[0].w, by.sin[0].w);
    turn(pair.low.z, pair.high.z, by.cos[1].x, by.sin[1].x, by.cos[1].y, by.sin[1].y);
    turn(pair.low.w, pair.high.w, by.cos[1].z, by.sin[1].z, by.cos[1].w, by.sin[1].w);
    return pair;
}
__device__ __forceinline__ void put(unsigned char *tile, u32 panel_bytes, int row, int chunk,
                                    const Pair &pair) {
    unsigned char *to = tile + chunk / 8 * panel_bytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
    *reinterpret_cast<uint4 *>(to) = pair.low;
    *reinterpret_cast<uint4 *>(to + 2 * panel_bytes) = pair.high;
}

// Fill what is not prefix: keys and values of the tail; beyond it, zero values, since 0 * NaN would be NaN.
// done: the tail is already there.
__device__ __forceinline__ void fill(const Arguments &a, const Part &part, int start, const u16 *tail,
                                     unsigned char *keys, unsigned char *values, bool done) {
    int first = max(part.length - start, 0);
#pragma unroll 1
    for (int item = first * CHUNKS + threadIdx.x; item < KEYS * CHUNKS; item += MULTIPLIERS) {
        int row = item / CHUNKS, chunk = item % CHUNKS, token = start + row - part.tail;
        if (!part.of_tail(start + row)) {
            put(values, K_BYTES, row, chunk, {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)});
        } else if (!done) {
            const u16 *key = tail + (long long)token * a.columns();
            put(keys, K_BYTES, row, chunk,
                turned(pair_of(key, chunk), angles_of(a, part.length + token, chunk)));
            put(values, K_BYTES, row, chunk, pair_of(key + a.kv_heads * HEAD, chunk));
        }
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + BRINGERS, 1)
    attend_rotary(const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
                  const Arguments a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Memory m = memory_of(memory);
    int groups = a.heads / a.kv_heads, across = (groups + HEADS - 1) / HEADS;
    int rank = blockIdx.x, kv_head = blockIdx.y / across, first_head = blockIdx.y % across * HEADS;
    int sequence = blockIdx.z / ((a.tokens + ROWS - 1) / ROWS),
        first = blockIdx.z % ((a.tokens + ROWS - 1) / ROWS) * ROWS;

    if (threadIdx.x == MULTIPLIERS) {
        for (int place = 0; place < STAGES; ++place)
            prepare(m.here + 8 * place, 1), prepare(m.read + 8 * place, 4 * HEADS);
        prepare(m.met, 1);
        prepared();
        ask_for(k_map), ask_for(v_map);
        expect(m.met, SPLIT * HEADS * owned(rank) * ROW_BYTES);
    }
    __syncthreads();
    Part part = part_of(a, rank, sequence);

    if (threadIdx.x >= MULTIPLIERS) {
        if (HEADS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        cluster_arrive();
        if (threadIdx.x == MULTIPLIERS) {
            let_next_begin();
            bring(m, k_map, v_map, part, kv_head, a.slots[sequence]);
        }
        __syncwarp();
        cluster_wait();
        cluster_arrive();
        cluster_wait();
        return;
    }

    if (HEADS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    // Rotate the queries and, if the tail is within the first tile, its keys, which have the same angles.
    const u16 *made = a.y + (long long)sequence * a.tokens * a.columns(),
              *tail = made + (a.heads + kv_head) * HEAD;
    int start = part.start(0), of_part = kv_head * groups + first_head;
    bool along = a.tokens <= ROWS && part.tiles && start + KEYS > part.length;
    unsigned char *first_keys = m.tiles + place_of(part, 0) * TILE_BYTES,
                  *first_values = m.tiles + place_of(part, 1) * TILE_BYTES;
#pragma unroll
    for (int begin = 0; begin < TALL; begin += ROUNDS * AT_ONCE) {
        Angles angles[ROUNDS];
        Pair queries[HEADS][ROUNDS], keys[ROUNDS], values[ROUNDS];
        int chunk = threadIdx.x % CHUNKS, row = begin + threadIdx.x / CHUNKS;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round)
            angles[round] =
                angles_of(a, part.length + min(first + row + round * AT_ONCE, a.tokens - 1), chunk);
        if (begin == 0) after_previous();
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            int token = min(first + row + round * AT_ONCE, a.tokens - 1);
            const u16 *from = made + (long long)token * a.columns();
#pragma unroll
            for (int head = 0; head < HEADS; ++head)
                queries[head][round] =
                    pair_of(from + (of_part + min(head, groups - 1 - first_head)) * HEAD, chunk);
            if (along) {
                from += (a.heads + kv_head) * HEAD;
                keys[round] = pair_of(from, chunk), values[round] = pair_of(from + a.kv_heads * HEAD, chunk);
            }
        }
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round)
            if (row + round * AT_ONCE < TALL)
#pragma unroll
                for (int head = 0; head < HEADS; ++head)
                    put(m.own + head * OWN_BYTES, Q_BYTES, row + round * AT_ONCE, chunk,
                        turned(queries[head][round], angles[round]));
        if (along) {
            if (begin == 0) await(m.here + 8 * place_of(part, 0)), await(m.here + 8 * place_of(part, 1));
#pragma unroll
            for (int round = 0; round < ROUNDS; ++round) {
                int token = row + round * AT_ONCE, at = part.tail + token - start;
                if (token < a.tokens && at >= 0 && at < KEYS && part.of_tail(part.tail + token)) {
                    put(first_keys, K_BYTES, at, chunk, turned(keys[round], angles[round]));
                    put(first_values, K_BYTES, at, chunk, values[round]);
                }
            }
        }
    }
    if (along) fill(a, part, start, tail, first_keys, first_values, true);
    show_engines();
    multipliers_meet();

    int group = group_of(128), thread = threadIdx.x % 128;
    int row = thread / 32 * 16 + thread % 32 / 4, pair = thread % 4 * 2;
    int visible[2];  // end of the keys that the thread's two rows see
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
        visible[lower] = min(part.high, part.tail + (first + row + 8 * lower < a.alone ? a.alone : a.tokens));
    float top[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f}, result[HEAD / 2];
#pragma unroll
    for (int i = 0; i < HEAD / 2; ++i) result[i] = 0.0f;
    u64 queries = tile_at(shared(m.own + group * OWN_BYTES));
#pragma unroll 1
    for (int tile = 0; tile < part.tiles; ++tile) {
        start = part.start(tile);
        int key_place = place_of(part, 2 * tile), value_place = place_of(part, 2 * tile + 1);
        u32 key_times = 2 * tile / STAGES, value_times = (2 * tile + 1) / STAGES;
        await(m.here + 8 * key_place, key_times);
        if (start + KEYS > part.length && !(along && tile == 0)) {
            await(m.here + 8 * value_place, value_times);
            fill(a, part, start, tail, m.tiles + key_place * TILE_BYTES, m.tiles + value_place * TILE_BYTES,
                 false);
            show_engines();
            multipliers_meet();
        }
        u64 keys = tile_at(shared(m.tiles) + key_place * TILE_BYTES),
            values = tile_at(shared(m.tiles) + value_place * TILE_BYTES, K_BYTES);
        float s[KEYS / 2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) s[i] = 0.0f;
        begin_products();
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                multiply(s, queries + panel * (Q_BYTES / 16) + 2 * k, keys + panel * (K_BYTES / 16) + 2 * k);
        end_products();
        settle(s);
        if (thread % 32 == 0) arrive(m.read + 8 * key_place);
        if (tile + 1 == part.tiles) cluster_arrive();  // results may come to the tiles' place
        if (start + KEYS > min(part.length, part.high))
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                int key = start + i / 4 * 8 + pair + i % 2;
                bool seen =
                    key < min(part.length, part.high) || (key >= part.tail && key < visible[i / 2 % 2]);
                s[i] = seen ? s[i] : -__int_as_float(0x7f800000);
            }
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            float highest = top[lower];
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i)
                highest = fmaxf(highest, fmaxf(s[4 * i + 2 * lower], s[4 * i + 2 * lower + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            float shrink = power((top[lower] - highest) * a.scale), sum = 0.0f, from = highest * a.scale;
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float &score = s[4 * i + 2 * lower + j];
                    score = power(fmaf(score, a.scale, -from));
                    sum += score;
                }
            top[lower] = highest, total[lower] = total[lower] * shrink + sum;
            if (tile)
#pragma unroll
                for (int i = 0; i < HEAD / 8; ++i)
                    result[4 * i + 2 * lower] *= shrink, result[4 * i + 2 * lower + 1] *= shrink;
        }
        u32 weights[KEYS / 16][4];
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        await(m.here + 8 * value_place, value_times);
        begin_products();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) multiply(result, weights[k], values + k * (2048 / 16));
        end_products();
        settle(result);
        if (thread % 32 == 0) arrive(m.read + 8 * value_place);
    }
    if (!part.tiles) cluster_arrive();

    // Store the group's result over its queries, which all of its threads have read.
    unsigned char *own = m.own + group * OWN_BYTES;
    group_meets(group);
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        total[lower] += __shfl_xor_sync(~0u, total[lower], 1);
        total[lower] += __shfl_xor_sync(~0u, total[lower], 2);
        if (row + 8 * lower >= TALL) continue;
        float by = 1.0f / fmaxf(total[lower], 1e-30f);
        unsigned char *to = own + (row + 8 * lower) * ROW_BYTES;
#pragma unroll
        for (int i = 0; i < HEAD / 8; ++i)
            *reinterpret_cast<u32 *>(to + 16 * i + 2 * pair) =
                pack(result[4 * i + 2 * lower] * by, result[4 * i + 2 * lower + 1] * by);
        if (pair == 0)
            *reinterpret_cast<float2 *>(to + HEAD * 2) = make_float2(top[lower] * a.scale, total[lower]);
    }
    show_engines();
    group_meets(group);
    cluster_wait();  // all blocks have read their keys
    if (thread < SPLIT && owned(thread))
        send(at_rank(shared(m.found) + (rank * HEADS + group) * GIVEN_BYTES, thread),
             shared(own) + thread * GIVEN_BYTES, owned(thread) * ROW_BYTES, at_rank(m.met, thread));
    await(m.met, 0);
    __syncwarp();
    cluster_arrive();

#pragma unroll 1
    for (int at = threadIdx.x; at < HEADS * owned(rank) * 32; at += MULTIPLIERS) {
        int head = at / 32 / owned(rank), here = at / 32 % owned(rank), column = at % 32 * 8;
        const unsigned char *from = m.found + head * GIVEN_BYTES + here * ROW_BYTES;
        float highest = -1e30f, sum = 0.0f, found[8] = {};
#pragma unroll
        for (int p = 0; p < SPLIT; ++p)
            highest =
                fmaxf(highest, *reinterpret_cast<const float *>(from + p * HEADS * GIVEN_BYTES + HEAD * 2));
#pragma unroll
        for (int p = 0; p < SPLIT; ++p) {
            const unsigned char *one = from + p * HEADS * GIVEN_BYTES;
            float2 weight = *reinterpret_cast<const float2 *>(one + HEAD * 2);
            float by = power(weight.x - highest) * weight.y;
            uint4 eight = *reinterpret_cast<const uint4 *>(one + column * 2);
            u32 twos[4] = {eight.x, eight.y, eight.z, eight.w};
            sum += by;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                found[2 * i] += by * wide(twos[i] & 0xffff), found[2 * i + 1] += by * wide(twos[i] >> 16);
        }
        int token = first + rank * OWNED + here;
        if (token >= a.tokens || first_head + head >= groups) continue;
        float by = 1.0f / fmaxf(sum, 1e-30f);
        *reinterpret_cast<uint4 *>(
            a.out +
            ((long long)(sequence * a.tokens + token) * a.heads + kv_head * groups + first_head + head) *
                HEAD +
            column) = make_uint4(pack(found[0] * by, found[1] * by), pack(found[2] * by, found[3] * by),
                                 pack(found[4] * by, found[5] * by), pack(found[6] * by, found[7] * by));
    }
    cluster_wait();  // wait until the other blocks have received this block's rows
}
