// Shared by the kernels for sm_90: wrappers for TMA, mbarriers and wgmma.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

struct __align__(64) TensorMap {
    unsigned char opaque[128];
};

__device__ __forceinline__ u32 shared(const void *at) { return u32(__cvta_generic_to_shared(at)); }
// Number of the thread's group of so many threads, the same for a warp: without the exchange the compiler
// does not know that, and makes every wgmma descriptor in vector registers.
__device__ __forceinline__ int group_of(int threads) { return __shfl_sync(~0u, threadIdx.x / threads, 0); }
// The same address in the shared memory of another block of the cluster.
__device__ __forceinline__ u32 at_rank(u32 address, int rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ float wide(u16 one) { return __uint_as_float(u32(one) << 16); }
__device__ __forceinline__ u32 pack(float first, float second) {
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}

__device__ __forceinline__ float power(float x) {  // 2^x
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float gelu(float x) {  // 0.5 (1 + tanh(z)) is the logistic function of 2 z
    float z = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + power(-2.8853900817779268f * z));
}
__device__ __forceinline__ float silu(float x) {
    return __fdividef(x, 1.0f + power(-1.4426950408889634f * x));
}

// Barriers in shared memory (mbarrier). time: how many phases were completed before.
__device__ __forceinline__ void prepare(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ __forceinline__ void prepared() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void await(u32 barrier, u32 time = 0) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again%=;\n}" ::"r"(barrier),
        "r"(time & 1)
        : "memory");
}
// Cluster barrier without release semantics: a release would wait until all stores are visible to the whole
// device. Data that blocks send each other has mbarriers of its own.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Make stores to shared memory visible to TMA and wgmma.
__device__ __forceinline__ void show_engines() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Programmatic dependent launch.
__device__ __forceinline__ void after_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// TMA loads.
__device__ __forceinline__ void ask_for(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void load_tile(u32 to, const TensorMap &map, int x, int y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}
// L2 policies: for data that no other block needs, and for data that all blocks need.
__device__ __forceinline__ u64 once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ u64 often() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void load_tile(u32 to, const TensorMap &map, int x, int y, u32 barrier,
                                          u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
        : "memory");
}
__device__ __forceinline__ void load_tile(u32 to, const TensorMap &map, int x, int y, int z, int w,
                                          u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
        : "memory");
}
// Copy from this block's shared memory to another's, whose barrier counts the bytes.
__device__ __forceinline__ void send(u32 to, u32 from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// wgmma operands: a tile of swizzled rows of 128 bytes. apart: bytes between panels of 64 columns, for an
// operand whose columns are those of the result.
__device__ __forceinline__ u64 tile_at(u32 address, u32 apart = 16) {
    return u64((address & 0x3ffff) >> 4) | u64(apart >> 4) << 16 | u64(64) << 32 | u64(1) << 62;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int UNDER_WAY = 0>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(UNDER_WAY) : "memory");
}
__device__ __forceinline__ void end_products() { commit_products(), wait_for_products(); }
template <int N>
__device__ __forceinline__ void settle(float (&c)[N]) {  // c must not be read or moved before
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
#define EIGHT(c, i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define SUMS_4(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define SUMS_8(c) EIGHT(c, 0)
#define SUMS_16(c) SUMS_8(c), EIGHT(c, 8)
#define SUMS_24(c) SUMS_16(c), EIGHT(c, 16)
#define SUMS_32(c) SUMS_24(c), EIGHT(c, 24)
#define SUMS_40(c) SUMS_32(c), EIGHT(c, 32)
#define SUMS_48(c) SUMS_40(c), EIGHT(c, 40)
#define SUMS_56(c) SUMS_48(c), EIGHT(c, 48)
#define SUMS_64(c) SUMS_56(c), EIGHT(c, 56)
#define SUMS_72(c) SUMS_64(c), EIGHT(c, 64)
#define SUMS_80(c) SUMS_72(c), EIGHT(c, 72)
#define SUMS_96(c) SUMS_80(c), EIGHT(c, 80), EIGHT(c, 88)
#define SUMS_128(c) SUMS_96(c), EIGHT(c, 96), EIGHT(c, 104), EIGHT(c, 112), EIGHT(c, 120)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_32 NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_64 NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_72 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 \
    NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128 \
    NAMES_96 \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// c += left (64 x 16) @ right (16 x 2 N). Either both operands are in shared memory, `right` as rows of its
// transpose; or `left` is in registers, and `right` is not transposed. The macro arguments after the sums are
// the asm operand numbers of the other operands.
#define PRODUCT(columns, sums, first, second)                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" NAMES_##sums "}, %" \
                 #first ", %" #second ", 1, 1, 1, 0, 0;"                                                 \
                 : SUMS_##sums(c)                                                                        \
                 : "l"(left), "l"(right))
template <int N>
__device__ __forceinline__ void multiply(float (&c)[N], u64 left, u64 right) {
    if constexpr (N == 8) PRODUCT(16, 8, 8, 9);
    else if constexpr (N == 16) PRODUCT(32, 16, 16, 17);
    else if constexpr (N == 24) PRODUCT(48, 24, 24, 25);
    else if constexpr (N == 32) PRODUCT(64, 32, 32, 33);
    else if constexpr (N == 40) PRODUCT(80, 40, 40, 41);
    else if constexpr (N == 48) PRODUCT(96, 48, 48, 49);
    else if constexpr (N == 56) PRODUCT(112, 56, 56, 57);
    else if constexpr (N == 64) PRODUCT(128, 64, 64, 65);
    else if constexpr (N == 72) PRODUCT(144, 72, 72, 73);
    else if constexpr (N == 80) PRODUCT(160, 80, 80, 81);
    else if constexpr (N == 96) PRODUCT(192, 96, 96, 97);
    else {
        static_assert(N == 128, "products of 16 to 160, 192 or 256 columns");
        PRODUCT(256, 128, 128, 129);
    }
}
#define PRODUCT_OF_REGISTERS(columns, sums, first, second, third, fourth, then)                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" NAMES_##sums "}, {%" \
                 #first ", %" #second ", %" #third ", %" #fourth "}, %" #then ", 1, 1, 1, 1;"            \
                 : SUMS_##sums(c)                                                                        \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right))
template <int N>
__device__ __forceinline__ void multiply(float (&c)[N], const u32 (&left)[4], u64 right) {
    if constexpr (N == 4) PRODUCT_OF_REGISTERS(8, 4, 4, 5, 6, 7, 8);
    else if constexpr (N == 32) PRODUCT_OF_REGISTERS(64, 32, 32, 33, 34, 35, 36);
    else if constexpr (N == 64) PRODUCT_OF_REGISTERS(128, 64, 64, 65, 66, 67, 68);
    else {
        static_assert(N == 128, "products of 8, 64, 128 or 256 columns");
        PRODUCT_OF_REGISTERS(256, 128, 128, 129, 130, 131, 132);
    }
}
