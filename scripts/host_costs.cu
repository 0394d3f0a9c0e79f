// Host costs of CUDA's runtime in front of one GPU, one thread: launches, waits, events, graphs.
//
// Prints rows of "what,setting,median_us,low_us,high_us,repeats". With the argument `depth`: how
// many calls a busy GPU's queue takes before one waits, how long that one waits, and what each
// before it takes: "what,setting,calls,low,high,waited_us,call_us". Build: nvcc -O3 -arch=sm_90.

#include <cuda_runtime.h>

#include "cuda_check.cuh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

__global__ void empty() {}

template <int Bytes>
struct Arguments {
    char values[Bytes];
};

template <int Bytes>
__global__ void with_arguments(Arguments<Bytes> arguments, char *out) {
    if (out != nullptr) *out = arguments.values[Bytes - 1];
}

__global__ void spin(long long clocks) {
    long long begin = clock64();
    while (clock64() - begin < clocks) {
    }
}

__global__ void raise_flag(volatile int *flag, int value) { *flag = value; }

static double now_us() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

static void report(const std::string &what, const std::string &setting, std::vector<double> us) {
    std::sort(us.begin(), us.end());
    std::printf("%s,%s,%.3f,%.3f,%.3f,%zu\n", what.c_str(), setting.c_str(), us[us.size() / 2],
                us.front(), us.back(), us.size());
    std::fflush(stdout);
}

// Host time of each of `count` calls in a row, with an idle GPU before them.
static void host_time(const std::string &what, const std::string &setting, int count,
                      const std::function<void()> &call, int repeats = 21) {
    std::vector<double> us;
    for (int turn = 0; turn < repeats + 2; ++turn) {
        CHECK(cudaDeviceSynchronize());
        double begin = now_us();
        for (int i = 0; i < count; ++i) call();
        double end = now_us();
        if (turn >= 2) us.push_back((end - begin) / count);
    }
    CHECK(cudaDeviceSynchronize());
    report(what, setting, us);
}

// GPU time of each of `count` calls whose launches are ahead of the GPU.
static void gpu_time(const std::string &what, const std::string &setting, int count,
                     cudaStream_t stream, const std::function<void()> &call, int repeats = 11) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<double> us;
    for (int turn = 0; turn < repeats + 2; ++turn) {
        spin<<<1, 1, 0, stream>>>(6'000'000);  // about 3 ms
        CHECK(cudaEventRecord(begin, stream));
        for (int i = 0; i < count; ++i) call();
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (turn >= 2) us.push_back(1e3 * ms / count);
    }
    report(what, setting, us);
}

static cudaGraphExec_t chain_graph(int nodes, int branches, double *instantiate_us) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void *>(empty);
    params.gridDim = dim3(1);
    params.blockDim = dim3(32);
    std::vector<cudaGraphNode_t> last(branches);
    for (int i = 0; i < nodes; ++i) {
        cudaGraphNode_t node;
        bool first = i < branches;
        CHECK(cudaGraphAddKernelNode(&node, graph, first ? nullptr : &last[i % branches],
                                     first ? 0 : 1, &params));
        last[i % branches] = node;
    }
    cudaGraphExec_t exec;
    double begin = now_us();
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    *instantiate_us = now_us() - begin;
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

// How many calls behind a long kernel return at once.
static void depth(const std::string &what, const std::string &setting, cudaStream_t stream,
                  const std::function<void()> &call, int most = 5000, int repeats = 5) {
    constexpr double WAITED_US = 500;  // the long kernel takes 100 times that
    std::vector<double> taken, waited, quick;
    for (int turn = 0; turn < repeats; ++turn) {
        CHECK(cudaDeviceSynchronize());
        spin<<<1, 1, 0, stream>>>(100'000'000);  // about 50 ms
        double begin = now_us(), before = begin, us = 0;
        int count = 0;
        for (; count < most; ++count) {
            call();
            double now = now_us();
            us = now - before;
            if (us > WAITED_US) break;
            before = now;
        }
        CHECK(cudaDeviceSynchronize());
        taken.push_back(count);
        waited.push_back(count < most ? us : 0);
        quick.push_back(count ? (before - begin) / count : 0);
    }
    for (auto *values : {&taken, &waited, &quick}) std::sort(values->begin(), values->end());
    size_t middle = taken.size() / 2;
    std::printf("%s,%s,%.0f,%.0f,%.0f,%.1f,%.3f\n", what.c_str(), setting.c_str(), taken[middle],
                taken.front(), taken.back(), waited[middle], quick[middle]);
    std::fflush(stdout);
}

// Host time of the launches of a full queue, whose kernels take 20 us: how many wait, how long.
static void full_queue(cudaStream_t stream) {
    constexpr int LAUNCHES = 4000, LAST = 1000;
    std::vector<double> us;
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < LAUNCHES; ++i) {
        double begin = now_us();
        spin<<<1, 1, 0, stream>>>(40'000);
        us.push_back(now_us() - begin);
    }
    CHECK(cudaDeviceSynchronize());
    us.erase(us.begin(), us.end() - LAST);
    double sum = 0;
    int waits = 0;
    for (double value : us) {
        sum += value;
        waits += value > 10;
    }
    std::sort(us.begin(), us.end());
    std::printf("waits in %d launches of a full queue,kernels of 20 us,%d,%d,%d,%.1f,%.3f\n", LAST,
                waits, waits, waits, us.back(), sum / LAST);
    std::fflush(stdout);
}

static int depths(cudaStream_t stream, cudaStream_t other) {
    std::printf("what,setting,calls,low,high,waited_us,call_us\n");
    auto launch = [&] { empty<<<1, 32, 0, stream>>>(); };
    depth("launches before one waits", "", stream, launch);
    depth("launches before one waits", "bytes=1024", stream,
          [&] { with_arguments<1024><<<1, 32, 0, stream>>>(Arguments<1024>{}, nullptr); });
    depth("launches before one waits", "bytes=4000", stream,
          [&] { with_arguments<4000><<<1, 32, 0, stream>>>(Arguments<4000>{}, nullptr); });
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    depth("launches before one waits", "event_record behind each", stream, [&] {
        launch();
        CHECK(cudaEventRecord(event, stream));
    });
    depth("event_record before one waits", "", stream,
          [&] { CHECK(cudaEventRecord(event, stream)); });
    depth("launches before one waits", "in a stream that waits for the busy one", stream, [&] {
        CHECK(cudaEventRecord(event, stream));
        CHECK(cudaStreamWaitEvent(other, event, 0));
        empty<<<1, 32, 0, other>>>();
    });
    int *device_count, *pinned;
    CHECK(cudaMalloc(&device_count, 4096));
    CHECK(cudaMallocHost(&pinned, 4096));
    depth("copies to pinned host before one waits", "bytes=4096", stream, [&] {
        CHECK(cudaMemcpyAsync(pinned, device_count, 4096, cudaMemcpyDeviceToHost, stream));
    });
    for (int nodes : {10, 100}) {
        double instantiate_us = 0;
        cudaGraphExec_t exec = chain_graph(nodes, 1, &instantiate_us);
        CHECK(cudaGraphUpload(exec, stream));
        depth("graph launches before one waits", "nodes=" + std::to_string(nodes), stream,
              [&] { CHECK(cudaGraphLaunch(exec, stream)); }, 5000, 3);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaGraphExecDestroy(exec));
    }
    full_queue(stream);
    return 0;
}

int main(int argc, char **argv) {
    cudaStream_t stream, other;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (int i = 0; i < 100; ++i) empty<<<1, 32, 0, stream>>>();
    CHECK(cudaDeviceSynchronize());
    if (argc > 1 && std::string(argv[1]) == "depth") return depths(stream, other);
    std::printf("what,setting,median_us,low_us,high_us,repeats\n");

    auto launch = [&] { empty<<<1, 32, 0, stream>>>(); };
    host_time("launch", "calls=1", 1, launch, 101);
    host_time("launch", "calls=100", 100, launch);
    host_time("launch", "calls=500", 500, launch);
    host_time("launch", "calls=5000", 5000, launch, 5);
    host_time("launch", "calls=500;bytes=64", 500,
              [&] { with_arguments<64><<<1, 32, 0, stream>>>(Arguments<64>{}, nullptr); });
    host_time("launch", "calls=500;bytes=1024", 500,
              [&] { with_arguments<1024><<<1, 32, 0, stream>>>(Arguments<1024>{}, nullptr); });
    host_time("launch", "calls=500;bytes=4000", 500,
              [&] { with_arguments<4000><<<1, 32, 0, stream>>>(Arguments<4000>{}, nullptr); });

    gpu_time("kernel_period", "blocks=1", 500, stream, launch);
    gpu_time("kernel_period", "blocks=132", 500, stream,
             [&] { empty<<<132, 256, 0, stream>>>(); });
    gpu_time("kernel_period", "blocks=1320", 500, stream,
             [&] { empty<<<1320, 256, 0, stream>>>(); });
    {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(132);
        config.blockDim = dim3(256);
        config.stream = stream;
        cudaLaunchAttribute attribute[1];
        attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[0].val.programmaticStreamSerializationAllowed = 1;
        config.attrs = attribute;
        config.numAttrs = 1;
        auto dependent = [&] { CHECK(cudaLaunchKernelEx(&config, empty)); };
        host_time("launch", "calls=500;programmatic dependent", 500, dependent);
        gpu_time("kernel_period", "blocks=132;programmatic dependent", 500, stream, dependent);
    }

    // Waits: for an idle stream, for a kernel, for a count that is copied to the host.
    host_time("synchronize_idle", "stream", 100, [&] { CHECK(cudaStreamSynchronize(stream)); });
    host_time("launch_and_wait", "stream", 1, [&] {
        launch();
        CHECK(cudaStreamSynchronize(stream));
    }, 101);
    int *device_count, *pinned;
    CHECK(cudaMalloc(&device_count, 4096));
    CHECK(cudaMemset(device_count, 0, 4096));
    CHECK(cudaMallocHost(&pinned, 4096));
    std::vector<int> pageable(1024);
    for (int bytes : {4, 4096}) {
        std::string size = "bytes=" + std::to_string(bytes);
        host_time("copy_to_host_and_wait", size + ";pinned", 1, [&] {
            CHECK(cudaMemcpyAsync(pinned, device_count, bytes, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
        }, 101);
        host_time("copy_to_host_and_wait", size + ";pageable", 1, [&] {
            CHECK(cudaMemcpyAsync(pageable.data(), device_count, bytes, cudaMemcpyDeviceToHost,
                                  stream));
            CHECK(cudaStreamSynchronize(stream));
        }, 101);
        host_time("copy_to_device_call", size + ";pinned", 100, [&] {
            CHECK(cudaMemcpyAsync(device_count, pinned, bytes, cudaMemcpyHostToDevice, stream));
        });
        host_time("copy_to_device_call", size + ";pageable", 100, [&] {
            CHECK(cudaMemcpyAsync(device_count, pageable.data(), bytes, cudaMemcpyHostToDevice,
                                  stream));
        });
    }
    // From a launch on an idle GPU to what its kernel wrote into the host's memory.
    {
        int *flag, *seen_by_gpu, value = 0;
        CHECK(cudaHostAlloc(&flag, 4096, cudaHostAllocMapped));
        CHECK(cudaHostGetDevicePointer(&seen_by_gpu, flag, 0));
        std::vector<double> seen, called;
        for (int turn = 0; turn < 203; ++turn) {
            CHECK(cudaDeviceSynchronize());
            ++value;
            double begin = now_us();
            raise_flag<<<1, 1, 0, stream>>>(seen_by_gpu, value);
            double back = now_us();
            while (*static_cast<volatile int *>(flag) != value) {
            }
            double end = now_us();
            if (turn >= 3) {
                seen.push_back(end - begin);
                called.push_back(back - begin);
            }
        }
        report("launch_to_write_seen", "idle GPU", seen);
        report("launch_to_write_seen_call", "idle GPU", called);
        // From the end of a wait to the write of a kernel launched then: the queue is refilled.
        std::vector<double> refill;
        for (int turn = 0; turn < 103; ++turn) {
            spin<<<1, 1, 0, stream>>>(100'000);
            CHECK(cudaMemcpyAsync(pinned, device_count, 4, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
            ++value;
            double begin = now_us();
            raise_flag<<<1, 1, 0, stream>>>(seen_by_gpu, value);
            while (*static_cast<volatile int *>(flag) != value) {
            }
            if (turn >= 3) refill.push_back(now_us() - begin);
        }
        report("wait_to_write_seen", "after a copied count", refill);
    }

    // Events, and streams that wait for one another.
    cudaEvent_t timed_event, plain_event;
    CHECK(cudaEventCreate(&timed_event));
    CHECK(cudaEventCreateWithFlags(&plain_event, cudaEventDisableTiming));
    host_time("event_record", "timing", 200, [&] { CHECK(cudaEventRecord(timed_event, stream)); });
    host_time("event_record", "no timing", 200,
              [&] { CHECK(cudaEventRecord(plain_event, stream)); });
    host_time("stream_wait_event", "no timing", 200,
              [&] { CHECK(cudaStreamWaitEvent(other, plain_event, 0)); });
    host_time("event_query", "no timing", 200, [&] { cudaEventQuery(plain_event); });
    host_time("event_create_destroy", "no timing", 200, [&] {
        cudaEvent_t event;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CHECK(cudaEventDestroy(event));
    });
    std::vector<cudaEvent_t> events(400);
    for (auto &event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    size_t next = 0;
    auto hop = [&] {  // a kernel here, and one there behind it, and back
        cudaEvent_t there = events[next++ % 400], back = events[next++ % 400];
        empty<<<1, 32, 0, stream>>>();
        CHECK(cudaEventRecord(there, stream));
        CHECK(cudaStreamWaitEvent(other, there, 0));
        empty<<<1, 32, 0, other>>>();
        CHECK(cudaEventRecord(back, other));
        CHECK(cudaStreamWaitEvent(stream, back, 0));
    };
    gpu_time("two_kernels_in_two_streams", "events between them", 100, stream, hop);
    gpu_time("two_kernels_in_one_stream", "", 100, stream, [&] {
        empty<<<1, 32, 0, stream>>>();
        empty<<<1, 32, 0, stream>>>();
    });

    // Graphs of empty kernels: host time of a launch, GPU time of each node.
    for (int branches : {1, 4}) {
        for (int nodes : {10, 30, 100, 300, 1000, 2000}) {
            std::string setting =
                "nodes=" + std::to_string(nodes) + ";branches=" + std::to_string(branches);
            double instantiate_us = 0;
            cudaGraphExec_t exec = chain_graph(nodes, branches, &instantiate_us);
            report("graph_instantiate", setting, {instantiate_us});
            CHECK(cudaGraphUpload(exec, stream));
            auto run = [&] { CHECK(cudaGraphLaunch(exec, stream)); };
            host_time("graph_launch_call", setting, 1, run, 31);
            host_time("graph_launch_and_wait", setting, 1, [&] {
                run();
                CHECK(cudaStreamSynchronize(stream));
            }, 31);
            gpu_time("graph_period", setting, nodes < 1000 ? 20 : 5, stream, run, 7);
            CHECK(cudaGraphExecDestroy(exec));
        }
    }
    return 0;
}
