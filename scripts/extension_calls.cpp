// Entries of an extension that do nothing but take and give, for scripts/extension_calls.py.
//
// Their signatures have as many tensors, optional ones, numbers, objects and results as those of libraries that
// exchange rows: what Python, pybind11 and the dispatcher of PyTorch take around the work itself.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <tuple>
#include <vector>

#include <torch/extension.h>
#include <torch/library.h>

using torch::Tensor;
using Maybe = std::optional<Tensor>;

struct Sizes {
    int a, b, c, d, e;
};

struct Signal {
    std::shared_ptr<int> held = std::make_shared<int>(0);
};

struct Handle {
    Tensor first;
    int64_t number = 0;
};

Tensor made() { return torch::empty({8}, torch::dtype(torch::kInt32)); }

void check(const Tensor& one) {
    TORCH_CHECK(one.dim() == 1 and one.is_contiguous() and one.size(0) > 0);
    TORCH_CHECK(one.data_ptr() != nullptr);
}

// Microseconds of an empty tensor where nothing of Python is: those of a CPU, made and given back.
double empty_us(int64_t count) {
    auto begun = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) auto one = made();
    std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    return took.count() / count;
}

struct Entries {
    int ranks() const { return 1; }
    void nothing() const {}
    void one(const Tensor& a) const { check(a); }
    void eight(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& e, const Tensor& f,
               const Tensor& g, const Tensor& h) const {
        for (const auto* each : {&a, &b, &c, &d, &e, &f, &g, &h}) check(*each);
    }
    void eight_optional(const Maybe& a, const Maybe& b, const Maybe& c, const Maybe& d, const Maybe& e, const Maybe& f,
                        const Maybe& g, const Maybe& h) const {
        for (const auto* each : {&a, &b, &c, &d, &e, &f, &g, &h})
            if (each->has_value()) check(each->value());
    }
    int eight_numbers(int a, int b, int c, int d, int e, int f, int g, int h) const {
        return a + b + c + d + e + f + g + h;
    }
    void object(const Sizes& sizes) const { TORCH_CHECK(sizes.a >= 0); }
    std::vector<Tensor> results(int count) const {
        std::vector<Tensor> all;
        for (int i = 0; i < count; ++i) all.push_back(made());
        return all;
    }
    std::vector<int> numbers() const { return std::vector<int>(8, 1); }

    // Finds a kernel by the hash of its source, as libraries do that compile at run time: names of 15 numbers, a
    // thousand bytes with flags, two hashes byte by byte.
    int compiled(int rows, int columns) const {
        static std::unordered_map<std::string, std::shared_ptr<int>> kernels;
        static const std::string flags(600, 'f');
        char name[200];
        std::snprintf(name, sizeof name, "kernel<%d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d>", rows,
                      columns, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13);
        std::string source = "#include <kernels/of/a/library.cuh>\nusing namespace of_it;\nauto pointer = &";
        source = "// of headers: 0123456789abcdef\n" + source + name + ";\n" + std::string(100, ' ');
        const std::string whole = "kernel$$12.9$$" + flags + "$$" + source;
        const std::vector<char> bytes(whole.begin(), whole.end());
        std::ostringstream digest;
        digest << std::hex << std::setfill('0');
        for (uint64_t state : {0xc6a4a7935bd1e995ull, 0x9e3779b97f4a7c15ull}) {
            for (const char& each : bytes) state = (state ^ static_cast<uint8_t>(each)) * 0x100000001b3ull;
            digest << std::setw(16) << state;
        }
        const auto path = std::filesystem::path("/home/of/somebody/.cache") / ("kernel." + digest.str());
        auto& found = kernels[path];
        if (found == nullptr) found = std::make_shared<int>(rows);
        return *found;
    }

    // Of the shape of a count of rows by rank and expert.
    std::tuple<Tensor, Maybe, Tensor, Tensor, std::optional<Signal>> layout(
        const Tensor& ids, int experts, const std::optional<Signal>& previous, bool is_async, bool there) const {
        check(ids);
        TORCH_CHECK(experts > 0 and (is_async or not there));
        std::optional<Signal> event;
        if (is_async) event = Signal();
        return {made(), Maybe(), made(), made(), event};
    }

    // Of the shape of a dispatch, and of a combine.
    std::tuple<Tensor, Maybe, Maybe, Maybe, std::vector<int>, Tensor, Tensor, Tensor, Tensor, Tensor,
               std::optional<Signal>>
    dispatch(const Tensor& rows, const Maybe& scales, const Maybe& ids, const Maybe& weights, const Maybe& by_rank,
             const Tensor& is_in, const Maybe& by_expert, int known, const Maybe& prefix, const Maybe& channels,
             int aligned, int worst, const Sizes& sizes, std::optional<Signal>& previous, bool is_async,
             bool there) const {
        for (const auto* each : {&rows, &is_in}) check(*each);
        for (const auto* each : {&scales, &ids, &weights, &by_rank, &by_expert, &prefix, &channels})
            if (each->has_value()) check(each->value());
        TORCH_CHECK(known >= 0 and aligned >= 0 and worst >= 0 and sizes.a >= 0 and (is_async or not there));
        std::optional<Signal> event;
        if (is_async) event = Signal();
        auto given = ids.has_value() ? Maybe(made()) : Maybe();
        auto weighed = ids.has_value() ? Maybe(made()) : Maybe();
        return {made(), Maybe(), given, weighed, std::vector<int>(4, 1), prefix.has_value() ? *prefix : made(),
                channels.has_value() ? *channels : made(), made(), made(), made(), event};
    }
    std::tuple<Tensor, Maybe, std::optional<Signal>> combine(
        const Tensor& rows, const Maybe& weights, const Maybe& first, const Maybe& second, const Tensor& ids,
        const Tensor& prefix, const Tensor& channels, const Tensor& heads, const Sizes& sizes,
        const std::optional<Signal>& previous, bool is_async, bool there) const {
        for (const auto* each : {&rows, &ids, &prefix, &channels, &heads}) check(*each);
        for (const auto* each : {&weights, &first, &second})
            if (each->has_value()) check(each->value());
        TORCH_CHECK(sizes.a >= 0 and (is_async or not there));
        std::optional<Signal> event;
        if (is_async) event = Signal();
        return {made(), weights.has_value() ? Maybe(made()) : Maybe(), event};
    }
};

void wait_for(const Signal& one) { TORCH_CHECK(one.held != nullptr); }

void written(Tensor& out, const Tensor& a, const Tensor& b, double scale) {
    check(out), check(a), check(b);
    TORCH_CHECK(scale > 0);
}

void written_of_eight(Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& e,
                      const Tensor& f, const Tensor& g, double scale) {
    for (const auto* each : {&a, &b, &c, &d, &e, &f, &g}) check(*each);
    check(out);
    TORCH_CHECK(scale > 0);
}

Tensor returned(const Tensor& a, const Tensor& b, double scale) {
    check(a), check(b);
    TORCH_CHECK(scale > 0);
    return made();
}

TORCH_LIBRARY(extension_calls, m) {
    m.def("written(Tensor! out, Tensor a, Tensor b, float scale) -> ()");
    m.def("written_of_eight(Tensor! out, Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, "
          "float scale) -> ()");
    m.def("returned(Tensor a, Tensor b, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(extension_calls, CPU, m) {
    m.impl("written", &written);
    m.impl("written_of_eight", &written_of_eight);
    m.impl("returned", &returned);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    pybind11::class_<Sizes>(m, "Sizes")
        .def(pybind11::init<int, int, int, int, int>(), py::arg("a") = 20, py::arg("b") = 6, py::arg("c") = 256,
             py::arg("d") = 6, py::arg("e") = 128);
    pybind11::class_<Signal>(m, "Signal").def(pybind11::init<>()).def("wait", &wait_for);
    pybind11::class_<Handle>(m, "Handle")
        .def(pybind11::init<>())
        .def_readwrite("first", &Handle::first)
        .def_readwrite("number", &Handle::number);
    pybind11::class_<Entries>(m, "Entries")
        .def(pybind11::init<>())
        .def("ranks", &Entries::ranks)
        .def("nothing", &Entries::nothing)
        .def("one", &Entries::one)
        .def("eight", &Entries::eight)
        .def("eight_optional", &Entries::eight_optional)
        .def("eight_numbers", &Entries::eight_numbers)
        .def("object", &Entries::object)
        .def("results", &Entries::results)
        .def("numbers", &Entries::numbers)
        .def("compiled", &Entries::compiled)
        .def("layout", &Entries::layout)
        .def("dispatch", &Entries::dispatch)
        .def("combine", &Entries::combine);
    m.def("written", &written);
    m.def("empty_us", &empty_us);
}
