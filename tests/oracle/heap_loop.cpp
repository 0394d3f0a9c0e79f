// What a plain discrete-event loop in C++ does with the standard layer, as a yardstick.
//
// One binary heap of events ordered by (time, order of creation); one event when a service ends
// and one when its result has travelled. Input (32-bit little endian): number of GPUs, rows and
// tiles; then source, target and tile of every row; then the GPU of every tile. Prints the
// makespan in picoseconds and the median CPU time of the runs in seconds.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <queue>
#include <vector>

namespace {

constexpr int64_t kRow = 31858, kHop = 250000, kTile = 17000000;  // picoseconds

struct Event {
  int64_t time;
  uint32_t order;
  int32_t what;
  int32_t subject;
  bool operator<(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

enum What { kUpEnd, kUpSeen, kDownSeen, kTileEnd, kBackEnd, kBackSeen, kHome };

struct Layer {
  int gpus, rows, tiles;
  std::vector<int32_t> source, target, tile, tile_gpu, tile_rows, by_tile, tile_begin;
  std::vector<std::vector<int32_t>> by_source;
};

std::vector<int32_t> Read(FILE* file, size_t count) {
  std::vector<int32_t> values(count);
  if (fread(values.data(), 4, count, file) != count) exit(1);
  return values;
}

Layer Load(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) exit(1);
  std::vector<int32_t> head = Read(file, 3);
  Layer layer{head[0], head[1], head[2], {}, {}, {}, {}, {}, {}, {}, {}};
  layer.source = Read(file, layer.rows);
  layer.target = Read(file, layer.rows);
  layer.tile = Read(file, layer.rows);
  layer.tile_gpu = Read(file, layer.tiles);
  fclose(file);
  layer.tile_rows.assign(layer.tiles, 0);
  layer.by_source.resize(layer.gpus);
  for (int row = 0; row < layer.rows; ++row) {
    ++layer.tile_rows[layer.tile[row]];
    layer.by_source[layer.source[row]].push_back(row);
  }
  layer.tile_begin.assign(layer.tiles + 1, 0);
  for (int tile = 0; tile < layer.tiles; ++tile)
    layer.tile_begin[tile + 1] = layer.tile_begin[tile] + layer.tile_rows[tile];
  layer.by_tile.resize(layer.rows);
  std::vector<int32_t> next(layer.tile_begin.begin(), layer.tile_begin.end() - 1);
  for (int row = 0; row < layer.rows; ++row) layer.by_tile[next[layer.tile[row]]++] = row;
  return layer;
}

int64_t Run(const Layer& layer) {
  std::priority_queue<Event> events;
  uint32_t order = 0;
  std::vector<int64_t> down_free(layer.gpus, 0), sm_free(layer.gpus, 0);
  std::vector<int32_t> missing(layer.tile_rows);
  std::vector<std::vector<int32_t>> returning(layer.gpus);
  std::vector<size_t> sent(layer.gpus, 0), returned(layer.gpus, 0);
  std::vector<char> busy(layer.gpus, 0);
  int64_t now = 0;
  auto post = [&](int64_t time, int what, int subject) {
    events.push({time, order++, what, subject});
  };
  auto next_up = [&](int gpu) {  // rows of its own first, then what it has computed
    busy[gpu] = 1;
    if (sent[gpu] < layer.by_source[gpu].size())
      post(now + kRow, kUpEnd, layer.by_source[gpu][sent[gpu]++]);
    else if (returned[gpu] < returning[gpu].size())
      post(now + kRow, kBackEnd, returning[gpu][returned[gpu]++]);
    else
      busy[gpu] = 0;
  };
  for (int gpu = 0; gpu < layer.gpus; ++gpu) next_up(gpu);
  while (!events.empty()) {
    Event event = events.top();
    events.pop();
    now = event.time;
    int row = event.subject;
    switch (event.what) {
      case kUpEnd:
        post(now + kHop, kUpSeen, row);
        next_up(layer.source[row]);
        break;
      case kUpSeen: {
        int64_t& free_at = down_free[layer.target[row]];
        free_at = std::max(free_at, now) + kRow;
        post(free_at + kHop, kDownSeen, row);
        break;
      }
      case kDownSeen: {
        int tile = layer.tile[row];
        if (--missing[tile] == 0) {
          int64_t& free_at = sm_free[layer.tile_gpu[tile]];
          free_at = std::max(free_at, now) + kTile;
          post(free_at, kTileEnd, tile);
        }
        break;
      }
      case kTileEnd: {
        int gpu = layer.tile_gpu[row];
        for (int i = layer.tile_begin[row]; i < layer.tile_begin[row + 1]; ++i)
          returning[gpu].push_back(layer.by_tile[i]);
        if (!busy[gpu]) next_up(gpu);
        break;
      }
      case kBackEnd:
        post(now + kHop, kBackSeen, row);
        next_up(layer.target[row]);
        break;
      case kBackSeen: {
        int64_t& free_at = down_free[layer.source[row]];
        free_at = std::max(free_at, now) + kRow;
        post(free_at + kHop, kHome, row);
        break;
      }
      case kHome:
        break;
    }
  }
  return now;
}

double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 1;
  Layer layer = Load(argv[1]);
  std::vector<double> times;
  int64_t makespan = 0;
  for (int run = 0; run < atoi(argv[2]); ++run) {
    double begin = CpuSeconds();
    makespan = Run(layer);
    times.push_back(CpuSeconds() - begin);
  }
  std::sort(times.begin(), times.end());
  printf("%lld %.6f\n", static_cast<long long>(makespan), times[times.size() / 2]);
}
