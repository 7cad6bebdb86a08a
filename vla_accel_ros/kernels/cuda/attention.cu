// Attention of a chunk's few tokens over a prefix and over themselves, in one launch, for sm_90:
// kernels/reference/attention.py has the plain reference.
//
// Split-K over the keys: the blocks of a cluster share one head, and each block has TEAMS teams of four
// warps. Each team takes one range of the prefix keys, the last team the tail. The head's value columns are
// divided among SIDES blocks, which each compute the same weights. TMA loads of the prefix start before the
// launch waits for the previous one, which only writes queries and the tail. The teams of a block combine
// their results, each for some of the columns. Then each block combines some of the rows, which TMA copies
// from the other blocks. Both sums have a fixed order.
//
// Macros: SPLIT blocks of a cluster, TEAMS of a block, KEYS of a key tile (48 to 192), SIDES (2 or 4) blocks
// that share a head's columns, TALL rows of a query tile (a multiple of 8 up to 64).

#include "hopper.cuh"

constexpr int PAD = 8;  // padding between rows that are written together, against bank conflicts
constexpr int ROWS = 64, HEAD = 256, WIDE = HEAD / SIDES, PANELS = HEAD / 64;
constexpr int PARTS = SPLIT * TEAMS, TEAM = 128, WORKERS = TEAMS * TEAM;
constexpr int STRIDE = WIDE + PAD;
constexpr int GROUPS = WIDE / 8 / TEAMS;                   // of 8 columns, that a team combines
constexpr int OWNED = (TALL / 8 + SPLIT - 1) / SPLIT * 8;  // rows that a block combines, at most
constexpr u32 Q_BYTES = TALL * 128, K_BYTES = KEYS * 128;  // of a panel of 64 columns

struct Arguments {
    u16 *out;  // [B, tokens, heads * HEAD]
    const int *slots, *lengths, *tails;
    float scale;  // of the scores, times log2(e)
    int tokens, heads, groups, alone;
};

__device__ __forceinline__ void team_meets(int team) {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + team) : "memory");
}
__device__ __forceinline__ void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

struct Memory {
    unsigned char *keys, *queries, *values;  // panels of 64 columns
    float *results;                          // [SPLIT, OWNED, STRIDE], of other blocks
    float *staged;                           // [SPLIT, OWNED, STRIDE], where queries and values were
    u32 queries_here, met;                   // barriers, one for each panel
    u32 keys_here, values_here, keys_read, values_read;  // one for each team
};
__device__ __forceinline__ Memory memory_of(unsigned char *memory) {
    Memory m;
    m.keys = memory, m.queries = m.keys + TEAMS * PANELS * K_BYTES;
    m.values = m.queries + PANELS * Q_BYTES;
    m.results = reinterpret_cast<float *>(m.values + TEAMS * (WIDE / 64) * K_BYTES);
    m.staged = reinterpret_cast<float *>(m.queries);
    m.queries_here = shared(m.results + SPLIT * OWNED * STRIDE), m.met = m.queries_here + 8 * PANELS;
    m.keys_here = m.met + 8, m.values_here = m.keys_here + 8 * TEAMS;
    m.keys_read = m.values_here + 8 * TEAMS, m.values_read = m.keys_read + 8 * TEAMS;
    return m;
}

static_assert(SPLIT * OWNED * STRIDE * 4 <= PANELS * Q_BYTES + TEAMS * (WIDE / 64) * K_BYTES,
              "staged where queries and values were");

struct Part {
    int low, high, slot;
    bool tail;
    __device__ __forceinline__ int tiles() const { return (max(high - low, 0) + KEYS - 1) / KEYS; }
};
__device__ __forceinline__ Part part_of(const Arguments &a, int number, int sequence) {
    Part part;
    part.tail = number == PARTS - 1;
    int length = a.lengths[sequence], share = (length + PARTS - 2) / (PARTS - 1);
    part.low = part.tail ? 0 : number * share;
    part.high = part.tail ? a.tails[sequence] : min(part.low + share, length);
    part.slot = part.tail ? sequence : a.slots[sequence];
    return part;
}

__device__ __forceinline__ void bring(const Memory &m, const TensorMap &keys, const TensorMap &values,
                                      const Part &part, int tile, int kv_head, int side, int team) {
    int first = part.low + tile * KEYS;
    u32 to_keys = shared(m.keys) + team * PANELS * K_BYTES;
    u32 to_values = shared(m.values) + team * (WIDE / 64) * K_BYTES;
    u32 keys_here = m.keys_here + 8 * team, values_here = m.values_here + 8 * team;
    if (tile) await(m.keys_read + 8 * team, tile - 1);
    expect(keys_here, PANELS * K_BYTES);
    for (int panel = 0; panel < PANELS; ++panel)
        load_tile(to_keys + panel * K_BYTES, keys, panel * 64, first, kv_head, part.slot, keys_here);
    if (tile) await(m.values_read + 8 * team, tile - 1);
    expect(values_here, WIDE / 64 * K_BYTES);
    for (int panel = 0; panel < WIDE / 64; ++panel)
        load_tile(to_values + panel * K_BYTES, values, side * WIDE + panel * 64, first, kv_head, part.slot,
                  values_here);
}

// Zero the values beyond the last key: they may be NaN, and 0 * NaN is NaN.
__device__ __forceinline__ void clear_beyond(unsigned char *values, int keys, int team) {
    int beyond = (KEYS - keys) * 8;
    for (int at = threadIdx.x % TEAM; at < beyond * (WIDE / 64); at += TEAM)
        *reinterpret_cast<uint4 *>(values + at / beyond * K_BYTES + keys * 128 + at % beyond * 16) =
            make_uint4(0, 0, 0, 0);
    show_engines();
    team_meets(team);
}

// A team's partial result for each thread's two rows: maximum, sum of weights, weighted values.
struct Found {
    float top[2], total[2], result[WIDE / 2];
};

// Online softmax of one more tile; returns the weights as wgmma operands. end: visible keys of each row.
__device__ __forceinline__ void soften(Found &found, float (&s)[KEYS / 2], u32 (&weights)[KEYS / 16][4],
                                       const int (&end)[2], int pair, float scale, bool first) {
    float highest[2][2] = {{found.top[0], found.top[0]}, {found.top[1], found.top[1]}};
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
        int lower = i / 2 % 2, j = i % 2;
        s[i] = i / 4 * 8 + j < end[lower] - pair ? s[i] : -__int_as_float(0x7f800000);
        highest[lower][j] = fmaxf(highest[lower][j], s[i]);
    }
    float top[2], sum[2][2] = {};
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        top[lower] = fmaxf(highest[lower][0], highest[lower][1]);
        top[lower] = fmaxf(top[lower], __shfl_xor_sync(~0u, top[lower], 1));
        top[lower] = fmaxf(top[lower], __shfl_xor_sync(~0u, top[lower], 2));
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
        int lower = i / 2 % 2;
        s[i] = power(fmaf(s[i], scale, -top[lower] * scale));
        sum[lower][i % 2] += s[i];
    }
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        float shrink = power((found.top[lower] - top[lower]) * scale);
        found.total[lower] = found.total[lower] * shrink + (sum[lower][0] + sum[lower][1]);
        found.top[lower] = top[lower];
        if (!first)
#pragma unroll
            for (int i = 0; i < WIDE / 8; ++i)
                found.result[4 * i + 2 * lower] *= shrink, found.result[4 * i + 2 * lower + 1] *= shrink;
    }
}

// Combine the teams of a block. Afterwards each has its columns of the sum, and all have the same top and
// total.
__device__ __forceinline__ void merge(const Memory &m, Found &found, float (&v)[4 * GROUPS], int team) {
    constexpr int EACH = 4 * GROUPS, APART = PANELS * K_BYTES / 4;
    team_meets(team);  // the whole team has read its keys
    if (TEAMS == 1) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) v[i] = found.result[i];
        return;
    }
    static_assert(TEAMS == 1 || (TEAMS * EACH + 4) * TEAM <= APART, "told where the team's keys were");
    float *area = reinterpret_cast<float *>(m.keys), *own = area + team * APART;
    int thread = threadIdx.x % TEAM;
#pragma unroll
    for (int other = 0; other < TEAMS; ++other)
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (other == team) v[i] = found.result[other * EACH + i];
            else own[(other * EACH + i) * TEAM + thread] = found.result[other * EACH + i];
    float4 mine = make_float4(found.top[0], found.top[1], found.total[0], found.total[1]), all[TEAMS];
    float4 *told = reinterpret_cast<float4 *>(own + TEAMS * EACH * TEAM) + thread;
    *told = mine;
    workers_meet();
#pragma unroll
    for (int from = 0; from < TEAMS; ++from) all[from] = told[(from - team) * (APART / 4)];
    float total[2] = {};
#pragma unroll
    for (int from = 0; from < TEAMS; ++from) {
        found.top[0] = fmaxf(found.top[0], all[from].x), found.top[1] = fmaxf(found.top[1], all[from].y);
    }
    float sums[EACH] = {};
#pragma unroll
    for (int from = 0; from < TEAMS; ++from) {
        float by[2] = {power(all[from].x - found.top[0]), power(all[from].y - found.top[1])};
        total[0] += by[0] * all[from].z, total[1] += by[1] * all[from].w;
        const float *theirs = area + from * APART + team * EACH * TEAM + thread;
#pragma unroll
        for (int i = 0; i < EACH; ++i) sums[i] += by[i / 2 % 2] * (from == team ? v[i] : theirs[i * TEAM]);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) v[i] = sums[i];
    found.total[0] = total[0], found.total[1] = total[1];
}

// Number of the `rows` rows that this block combines.
__device__ __forceinline__ int owned_by(int rank, int rows) {
    return max(min(rows - rank * OWNED, OWNED), 0);
}

// Send each row to the block that combines it.
__device__ __forceinline__ void hand_over(const Memory &m, const Found &found, const float (&v)[4 * GROUPS],
                                          int rank, int team, int row, int pair, int rows) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        int at = row + 8 * lower;
        if (at >= rows) continue;
        float *to = m.staged + at * STRIDE;
#pragma unroll
        for (int i = 0; i < GROUPS; ++i)
            *reinterpret_cast<float2 *>(to + 8 * (team * GROUPS + i) + pair) =
                make_float2(v[4 * i + 2 * lower], v[4 * i + 2 * lower + 1]);
        if (team == 0 && pair == 0)
            *reinterpret_cast<float2 *>(to + WIDE) = make_float2(found.top[lower], found.total[lower]);
    }
    show_engines();
    workers_meet();
    cluster_wait();  // all blocks have started, so their shared memory exists
    int other = threadIdx.x;
    if (other < SPLIT && other != rank && owned_by(other, rows))
        send(at_rank(shared(m.results + rank * OWNED * STRIDE), other),
             shared(m.staged + other * OWNED * STRIDE), owned_by(other, rows) * STRIDE * 4,
             at_rank(m.met, other));
    __syncwarp();
}

// Combine four columns of a row over all blocks, and store them at `out`.
__device__ __forceinline__ void add_up(const Memory &m, int rank, int owned, int column, u16 *out) {
    const float *own = m.staged + (rank * OWNED + owned) * STRIDE, *others = m.results + owned * STRIDE;
    float highest = -1e30f, sum = 0.0f;
    float4 made = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int p = 0; p < SPLIT; ++p)
        highest = fmaxf(highest, (p == rank ? own : others + p * OWNED * STRIDE)[WIDE]);
#pragma unroll
    for (int p = 0; p < SPLIT; ++p) {
        const float *from = p == rank ? own : others + p * OWNED * STRIDE;
        float2 found = *reinterpret_cast<const float2 *>(from + WIDE);
        float4 other = *reinterpret_cast<const float4 *>(from + column);
        float by = power(found.x - highest);
        sum += by * found.y;
        made.x += by * other.x, made.y += by * other.y, made.z += by * other.z, made.w += by * other.w;
    }
    float by = 1.0f / fmaxf(sum, 1e-30f);
    *reinterpret_cast<uint2 *>(out) =
        make_uint2(pack(made.x * by, made.y * by), pack(made.z * by, made.w * by));
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32, 1)
    attend(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
           const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap k_tail_map,
           const __grid_constant__ TensorMap v_tail_map, const Arguments a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Memory m = memory_of(memory);
    int rank = blockIdx.x, head = blockIdx.y / SIDES, side = blockIdx.y % SIDES, kv_head = head / a.groups;
    int tiles = (a.tokens + ROWS - 1) / ROWS, sequence = blockIdx.z / tiles,
        first = blockIdx.z % tiles * ROWS;

    if (threadIdx.x == WORKERS) {
        let_next_begin();
        for (int panel = 0; panel < PANELS; ++panel) prepare(m.queries_here + 8 * panel, 1);
        prepare(m.met, 1);
        for (int team = 0; team < TEAMS; ++team) {
            prepare(m.keys_here + 8 * team, 1), prepare(m.values_here + 8 * team, 1);
            prepare(m.keys_read + 8 * team, 4), prepare(m.values_read + 8 * team, 4);
        }
        prepared();
        ask_for(q_map), ask_for(k_tail_map), ask_for(v_tail_map);
        expect(m.met, (SPLIT - 1) * owned_by(rank, min(a.tokens - first, ROWS)) * STRIDE * 4);
    }
    __syncthreads();
    cluster_arrive();

    if (threadIdx.x >= WORKERS) {
        if (threadIdx.x == WORKERS) {
            Part parts[TEAMS];
#pragma unroll
            for (int team = 0; team < TEAMS; ++team) {
                parts[team] = part_of(a, rank * TEAMS + team, sequence);
                if (!parts[team].tail && parts[team].tiles())
                    bring(m, k_map, v_map, parts[team], 0, kv_head, side, team);
            }
            after_previous();
            for (int panel = 0; panel < PANELS; ++panel) {
                expect(m.queries_here + 8 * panel, Q_BYTES);
                load_tile(shared(m.queries) + panel * Q_BYTES, q_map, head * HEAD + panel * 64,
                          sequence * a.tokens + first, m.queries_here + 8 * panel);
            }
            int most = 0;
#pragma unroll
            for (int team = 0; team < TEAMS; ++team) {
                if (parts[team].tail && parts[team].tiles())
                    bring(m, k_tail_map, v_tail_map, parts[team], 0, kv_head, side, team);
                most = max(most, parts[team].tiles());
            }
            for (int tile = 1; tile < most; ++tile)
#pragma unroll
                for (int team = 0; team < TEAMS; ++team)
                    if (tile < parts[team].tiles())
                        bring(m, parts[team].tail ? k_tail_map : k_map, parts[team].tail ? v_tail_map : v_map,
                              parts[team], tile, kv_head, side, team);
        }
        __syncwarp();
        cluster_wait(), cluster_arrive(), cluster_wait();
        return;
    }

    int team = group_of(TEAM), number = rank * TEAMS + team;
    Part part = part_of(a, number, sequence);
    int row = threadIdx.x % TEAM / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
    int visible[2];  // tail keys that the thread's two rows see
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
        visible[lower] = part.tail && first + row + 8 * lower < a.alone ? a.alone : 0x7fffffff;
    Found found;
    found.top[0] = found.top[1] = -1e30f, found.total[0] = found.total[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDE / 2; ++i) found.result[i] = 0.0f;
    unsigned char *own_values = m.values + team * (WIDE / 64) * K_BYTES;
    u64 queries = tile_at(shared(m.queries)), keys = tile_at(shared(m.keys) + team * PANELS * K_BYTES),
        values = tile_at(shared(own_values), K_BYTES);
    if (!part.tiles())  // a block must not exit before its loads arrive
        for (int panel = 0; panel < PANELS; ++panel) await(m.queries_here + 8 * panel);
#pragma unroll 1
    for (int tile = 0; tile < part.tiles(); ++tile) {
        int start = part.low + tile * KEYS, here = min(part.high - start, KEYS);
        float s[KEYS / 2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) s[i] = 0.0f;
        await(m.keys_here + 8 * team, tile);
        begin_products();
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            await(m.queries_here + 8 * panel);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                multiply(s, queries + panel * (Q_BYTES / 16) + 2 * k, keys + panel * (K_BYTES / 16) + 2 * k);
        }
        commit_products();
        await(m.values_here + 8 * team, tile);
        if (here < KEYS) clear_beyond(own_values, here, team);  // overlaps the products
        wait_for_products();
        settle(s);
        if (threadIdx.x % 32 == 0) arrive(m.keys_read + 8 * team);
        int end[2] = {min(here, visible[0] - start), min(here, visible[1] - start)};
        u32 weights[KEYS / 16][4];
        soften(found, s, weights, end, pair, a.scale, tile == 0);
        begin_products();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) multiply(found.result, weights[k], values + k * (2048 / 16));
        end_products();
        settle(found.result);
        if (threadIdx.x % 32 == 0) arrive(m.values_read + 8 * team);
    }

#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        found.top[lower] *= a.scale;
        found.total[lower] += __shfl_xor_sync(~0u, found.total[lower], 1);
        found.total[lower] += __shfl_xor_sync(~0u, found.total[lower], 2);
    }
    float v[4 * GROUPS];
    int rows = min(a.tokens - first, ROWS), owned_here = owned_by(rank, rows);
    merge(m, found, v, team);
    hand_over(m, found, v, rank, team, row, pair, rows);
    await(m.met);
    __syncwarp();
    cluster_arrive();
#pragma unroll
    for (int at = threadIdx.x; at < OWNED * WIDE / 4; at += WORKERS) {
        int owned = at / (WIDE / 4), column = at % (WIDE / 4) * 4, token = first + rank * OWNED + owned;
        if (owned < owned_here)
            add_up(m, rank, owned, column,
                   a.out + ((long long)(sequence * a.tokens + token) * a.heads + head) * HEAD + side * WIDE +
                       column);
    }
    cluster_wait();  // wait until the other blocks have received this block's rows
}
