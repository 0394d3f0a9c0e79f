// MegaMoE's kernel for Hopper in waves, all experts on one GPU: "system,hidden,intermediate,topk,
// num_experts,ep_size,tokens_per_rank,order,time_us", the median of 20 launches behind 3, by CUDA's
// events. Rows of experts are those of the same tokens per GPU in a larger group with as many
// experts on each GPU; none leaves the GPU. Needs headers of sgl-project/DeepGEMM, pull request 36
// (3f9268b), and of CUTLASS. The kernel for high or low tiles first, then this program:
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr \
//     -diag-suppress=39,161,174,177,186,550,940 --ptxas-options=--register-usage-level=10 \
//     -I DeepGEMM/deep_gemm/include -I cutlass/include -DHIDDEN=4096 -DWIDTH=2048 -DEXPERTS=36 \
//     -DTOPK=8 -DHIGH=1 scripts/fused_kernel.cu  -DINSTANCE -cubin -o high.cubin | -o fused_kernel
//   fused_kernel dgx-h100 high.cubin 1024 2048 4096 8192
#ifdef INSTANCE
#include <deep_gemm/impls/sm90_fp8_mega_moe.cuh>
#else
#include <cuda.h>
#include <cuda_runtime.h>
#include <cudaTypedefs.h>
#include <deep_gemm/layout/mega_moe.cuh>
#include <deep_gemm/layout/sym_buffer.cuh>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>
#include <vector>
#endif

constexpr int kMostTokens = 8448;  // a multiple of 384, the least common of all heights
constexpr int kRows = HIGH ? 128 : 64, kColumns = HIGH ? 256 : 128, kDepth = 128;
constexpr int kThreads = HIGH ? 512 : 256;  // that multiply
constexpr int kSms = 132;
constexpr int kPool = (kMostTokens * TOPK + EXPERTS * 191 + 383) / 384 * 384;
constexpr int kScales = kPool / 8 * 128;  // room for the scales of rows in the lowest tiles
// Shared memory as in heuristics/sm90_mega_moe.hpp.
constexpr int align_to(int bytes, int unit) { return (bytes + unit - 1) / unit * unit; }
constexpr int kFixed = align_to(EXPERTS * 4, 1024) + align_to(2 * HIDDEN, 1024) +
                       align_to(2 * kRows * kColumns, 1024) + (2 + 2 * kThreads / 32) * 8;
constexpr int kStage = (kRows + kColumns) * kDepth + align_to(8 * kRows, 128) + 16;
constexpr int kStages = (232448 - kFixed) / kStage;

#ifdef INSTANCE
static void instance() {
    [[maybe_unused]] auto kernel = reinterpret_cast<void *>(
        &deep_gemm::sm90_fp8_mega_moe_impl<
            kMostTokens, HIDDEN, WIDTH, EXPERTS, TOPK, EXPERTS, kRows, kColumns, kDepth, kPool,
            kScales, kStages, 64, 64, kThreads, kSms, 1, cute::numeric_limits<float>::infinity(),
            true, HIGH ? 112 : 0, HIGH, HIGH, !HIGH, HIGH && HIDDEN >= 7168>);
}
#else
#define CHECK(call)                                                                      \
    do {                                                                                 \
        int error = int(call);                                                           \
        if (error != 0) {                                                                \
            std::fprintf(stderr, "%s: error %d\n", #call, error);                        \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)

PFN_cuTensorMapEncodeTiled_v12000 encode;

CUtensorMap tensor_map(void *at, bool floats, uint64_t inner, uint64_t outer, uint32_t box_inner,
                       uint32_t box_outer, bool swizzled) {
    CUtensorMap map;
    cuuint64_t sizes[] = {inner, outer}, strides[] = {inner * (floats ? 4 : 1)};
    cuuint32_t box[] = {box_inner, box_outer}, steps[] = {1, 1};
    CHECK(encode(&map, floats ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
                 at, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                 swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

// Values of FP8 with random sign and mantissa and exponents near one another: their products switch
// as many wires as a model's.
__global__ void fill_values(uint8_t *values, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
         i += size_t(gridDim.x) * blockDim.x) {
        uint64_t hash = (i + 1) * 0x9E3779B97F4A7C15ull;
        hash = (hash ^ hash >> 31) * 0xBF58476D1CE4E5B9ull;
        hash ^= hash >> 29;
        uint8_t exponent = 4 + (hash >> 14 & 3) + (hash >> 40 & 1);
        values[i] = (hash >> 11 & 0x87) | exponent << 3;
    }
}

__global__ void fill_scales(float *scales, size_t count, float value) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
         i += size_t(gridDim.x) * blockDim.x)
        scales[i] = value;
}

template <typename T>
T *allocate(size_t count) {
    T *found;
    CHECK(cudaMalloc(&found, count * sizeof(T)));
    return found;
}

int main(int argc, char **argv) {
    void *entry;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &result));
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
    cudaLibrary_t library;
    cudaKernel_t kernel;
    CHECK(cudaLibraryLoadFromFile(&library, argv[2], nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cudaLibraryEnumerateKernels(&kernel, 1, library));

    // What peers of a group share, one part behind the other.
    size_t end = deep_gemm::layout::Workspace(nullptr, 1, EXPERTS, kMostTokens, TOPK).get_num_bytes();
    auto part = [&](size_t bytes) { return std::exchange(end, end + bytes); };
    size_t tokens_at = part(size_t(kMostTokens) * HIDDEN);
    size_t token_scales_at = part(size_t(kMostTokens) * HIDDEN / 32);
    size_t ids_at = part(size_t(kMostTokens) * TOPK * 8), gates_at = part(kMostTokens * TOPK * 4);
    size_t first_at = part(size_t(kPool) * HIDDEN), first_scales_at = part(size_t(kScales) * HIDDEN / 32);
    part(kPool * 4);
    size_t second_at = part(size_t(kPool) * WIDTH), second_scales_at = part(size_t(kScales) * WIDTH / 16);
    part(size_t(kMostTokens) * TOPK * HIDDEN * 2);
    auto shared = allocate<uint8_t>(end);
    CHECK(cudaMemset(shared, 0, end));

    size_t first_size = size_t(EXPERTS) * 2 * WIDTH * HIDDEN, second_size = first_size / 2;
    auto first = allocate<uint8_t>(first_size), second = allocate<uint8_t>(second_size);
    auto first_scales = allocate<float>(first_size >> 14), second_scales = allocate<float>(second_size >> 14);
    auto out = allocate<uint8_t>(size_t(kMostTokens) * HIDDEN * 2);
    fill_values<<<1024, 256>>>(first, first_size);
    fill_values<<<1024, 256>>>(second, second_size);
    fill_values<<<1024, 256>>>(shared + tokens_at, size_t(kMostTokens) * HIDDEN);
    fill_scales<<<256, 256>>>(first_scales, first_size >> 14, 0.01f);
    fill_scales<<<256, 256>>>(second_scales, second_size >> 14, 0.01f);
    fill_scales<<<256, 256>>>(reinterpret_cast<float *>(shared + token_scales_at),
                              size_t(kMostTokens) * HIDDEN / 128, 1.0f);
    std::vector<float> gates(kMostTokens * TOPK, 1.0f / TOPK);
    CHECK(cudaMemcpy(shared + gates_at, gates.data(), gates.size() * 4, cudaMemcpyHostToDevice));

    auto first_rows = tensor_map(shared + first_at, false, HIDDEN, kPool, kDepth, kRows, true);
    auto first_row_scales = tensor_map(shared + first_scales_at, true, kScales, HIDDEN / 128, kRows, 1, false);
    auto first_weights = tensor_map(first, false, HIDDEN, first_size / HIDDEN, kDepth, kColumns, true);
    auto results = tensor_map(shared + second_at, false, WIDTH, kPool, 64, 64, false);
    auto second_rows = tensor_map(shared + second_at, false, WIDTH, kPool, kDepth, kRows, true);
    auto second_row_scales = tensor_map(shared + second_scales_at, true, kScales, WIDTH / 64, kRows, 1, false);
    auto second_weights = tensor_map(second, false, WIDTH, second_size / WIDTH, kDepth, kColumns, true);
    deep_gemm::layout::SymBuffer<> peers(std::vector<int64_t>{reinterpret_cast<int64_t>(shared)}, 0);
    int *no_counts = nullptr;
    uint32_t tokens;
    void *arguments[] = {&out, &no_counts, &tokens, &peers, &first_rows, &first_row_scales,
                         &first_weights, &first_scales, &results, &second_rows, &second_row_scales,
                         &second_weights, &second_scales};
    int bytes = kFixed + kStages * kStage;
    auto function = reinterpret_cast<void *>(kernel);
    CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));

    cudaEvent_t begun, ended;
    CHECK(cudaEventCreate(&begun));
    CHECK(cudaEventCreate(&ended));
    for (int argument = 3; argument < argc; ++argument) {
        tokens = std::atoi(argv[argument]);
        std::mt19937 random(7);
        std::vector<int64_t> ids, experts(EXPERTS);
        std::iota(experts.begin(), experts.end(), 0);
        for (uint32_t token = 0; token < tokens; ++token) {
            std::shuffle(experts.begin(), experts.end(), random);
            ids.insert(ids.end(), experts.begin(), experts.begin() + TOPK);
        }
        CHECK(cudaMemcpy(shared + ids_at, ids.data(), ids.size() * 8, cudaMemcpyHostToDevice));
        std::vector<float> times;
        for (int launch = 0; launch < 23; ++launch) {
            float milliseconds;
            CHECK(cudaEventRecord(begun));
            CHECK(cudaLaunchKernel(function, dim3(kSms), dim3(128 + kThreads), arguments, bytes, 0));
            CHECK(cudaEventRecord(ended));
            CHECK(cudaEventSynchronize(ended));
            CHECK(cudaEventElapsedTime(&milliseconds, begun, ended));
            if (launch >= 3) times.push_back(milliseconds * 1000);
        }
        std::sort(times.begin(), times.end());
        std::printf("%s,%d,%d,%d,%d,1,%u,waves,%.1f\n", argv[1], HIDDEN, WIDTH, TOPK, EXPERTS, tokens,
                    (times[9] + times[10]) / 2);
    }
}
#endif
