// A call of CUDA's runtime that ends the program with the call and its error where it fails.

#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t error = (call);                                                      \
        if (error != cudaSuccess) {                                                      \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));          \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)
