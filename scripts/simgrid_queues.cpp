// A task graph played by SimGrid's actors, executions and clock: an independent opinion on a
// schedule. simgrid_check.py builds and calls it.
//
// Every server of a resource is an actor that takes the next ready task and executes it on a host
// of its own; a way of some length between tasks is an actor that holds what is on it. One second
// of SimGrid's time stands for a picosecond of ours, one operation for a picosecond of work: whole
// numbers, which its doubles hold exactly.
//
// Usage: simgrid_queues GRAPH STARTS. Reads GRAPH (little-endian int64: tasks, resources, edges;
// servers of each resource; resource, priority, duration and latency of each task; first edge of
// each task and one past the last; target of each edge), writes the start of each task to STARTS
// and prints the makespan.
#include <simgrid/s4u.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

namespace sg4 = simgrid::s4u;
using i64 = std::int64_t;

struct Queue {
  // Lowest priority number first, then who was ready first, then the lowest number.
  using Entry = std::tuple<i64, double, i64>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> waiting;
  i64 num_idle = 0;  // servers that wait to be woken
  sg4::SemaphorePtr wake = sg4::Semaphore::create(0);
};

struct Way {
  std::deque<std::pair<double, i64>> travellers;
  bool is_idle = false;
  sg4::SemaphorePtr wake = sg4::Semaphore::create(0);
};

static i64 num_tasks, num_resources, num_edges;
static std::vector<i64> servers, resource, priority, duration, latency, first_edge, target;
static std::vector<i64> missing, starts;
static std::vector<Queue*> queues;
static std::map<i64, Way*> ways;
static i64 num_left;
static double last_visible = 0;
static sg4::SemaphorePtr finished;

// What an actor has to wake. To wake is to give SimGrid the word, and others may act before it
// gives it back: so first everything of this instant is written down, then all is woken.
struct Wakes {
  std::vector<Queue*> queues;
  std::vector<Way*> ways;
  bool is_end = false;

  void send() {
    for (Way* way : ways) way->wake->release();
    for (Queue* queue : queues) {
      i64 count = std::min(queue->num_idle, static_cast<i64>(queue->waiting.size()));
      queue->num_idle -= count;
      while (count-- > 0) queue->wake->release();
    }
    if (is_end) finished->release();
  }
};

static void travel(i64 delay, i64 task, Wakes& wakes) {
  Way* way = ways.at(delay);
  way->travellers.emplace_back(sg4::Engine::get_clock() + static_cast<double>(delay), task);
  if (way->is_idle) wakes.ways.push_back(way);
  way->is_idle = false;
}

// The task and all that follow from it without time passing.
static void become_visible(i64 task, Wakes& wakes) {
  const double now = sg4::Engine::get_clock();
  std::vector<i64> visible{task};
  while (not visible.empty()) {
    const i64 done = visible.back();
    visible.pop_back();
    last_visible = now;
    if (--num_left == 0) wakes.is_end = true;
    for (i64 edge = first_edge[done]; edge < first_edge[done + 1]; ++edge) {
      const i64 next = target[edge];
      if (--missing[next] > 0) continue;
      if (resource[next] >= 0) {
        queues[resource[next]]->waiting.emplace(priority[next], now, next);
        wakes.queues.push_back(queues[resource[next]]);
      } else {
        starts[next] = static_cast<i64>(now);
        const i64 delay = duration[next] + latency[next];
        if (delay > 0) travel(delay, next, wakes);
        else visible.push_back(next);
      }
    }
  }
}

static void serve(i64 mine) {
  Queue* queue = queues[mine];
  while (true) {
    if (queue->waiting.empty()) {
      ++queue->num_idle;
      queue->wake->acquire();
      continue;
    }
    const i64 task = std::get<2>(queue->waiting.top());
    queue->waiting.pop();
    starts[task] = static_cast<i64>(sg4::Engine::get_clock());
    if (duration[task] > 0) sg4::this_actor::execute(static_cast<double>(duration[task]));
    Wakes wakes;
    if (latency[task] > 0) travel(latency[task], task, wakes);
    else become_visible(task, wakes);
    wakes.send();
    sg4::this_actor::yield();  // let others of this instant write down who is ready
  }
}

static void carry(Way* way) {
  while (true) {
    if (way->travellers.empty()) {
      way->is_idle = true;
      way->wake->acquire();
      continue;
    }
    sg4::this_actor::sleep_until(way->travellers.front().first);
    Wakes wakes;
    const double now = sg4::Engine::get_clock();
    while (not way->travellers.empty() and way->travellers.front().first <= now) {
      const i64 task = way->travellers.front().second;
      way->travellers.pop_front();
      become_visible(task, wakes);
    }
    wakes.send();
  }
}

// The beginning is a task of no time, numbered behind the others; all that wait for no task wait
// for it.
static void begin() {
  Wakes wakes;
  become_visible(num_tasks, wakes);
  wakes.send();
  finished->acquire();
}

static std::vector<i64> read(std::FILE* file, i64 count) {
  std::vector<i64> values(static_cast<std::size_t>(count));
  if (std::fread(values.data(), sizeof(i64), values.size(), file) != values.size()) {
    std::fprintf(stderr, "the graph's file is too short\n");
    std::exit(1);
  }
  return values;
}

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);
  if (argc != 3) return 2;
  std::FILE* file = std::fopen(argv[1], "rb");
  if (file == nullptr) return 1;
  const auto sizes = read(file, 3);
  num_tasks = sizes[0], num_resources = sizes[1], num_edges = sizes[2];
  servers = read(file, num_resources);
  resource = read(file, num_tasks), priority = read(file, num_tasks);
  duration = read(file, num_tasks), latency = read(file, num_tasks);
  first_edge = read(file, num_tasks + 1), target = read(file, num_edges);
  std::fclose(file);
  missing.assign(num_tasks, 0);
  starts.assign(num_tasks, -1);
  for (const i64 next : target) ++missing[next];
  for (i64 task = 0; task < num_tasks; ++task) {
    if (missing[task] > 0) continue;
    missing[task] = 1;  // waits for the beginning alone
    target.push_back(task);
  }
  first_edge.push_back(static_cast<i64>(target.size()));
  num_left = num_tasks + 1;
  finished = sg4::Semaphore::create(0);

  auto* zone = sg4::create_full_zone("machine");
  std::vector<std::vector<sg4::Host*>> hosts(num_resources);
  for (i64 r = 0; r < num_resources; ++r)
    for (i64 s = 0; s < servers[r]; ++s)
      hosts[r].push_back(zone->create_host(std::to_string(r) + "." + std::to_string(s), 1.0));
  auto* outside = zone->create_host("outside", 1.0);
  zone->seal();
  for (i64 r = 0; r < num_resources; ++r) {
    queues.push_back(new Queue);
    for (auto* host : hosts[r]) sg4::Actor::create("server", host, serve, r)->daemonize();
  }
  for (i64 task = 0; task < num_tasks; ++task) {
    const i64 delay = resource[task] < 0 ? duration[task] + latency[task] : latency[task];
    if (delay > 0 && ways.find(delay) == ways.end()) {
      ways[delay] = new Way;
      sg4::Actor::create("way", outside, carry, ways[delay])->daemonize();
    }
  }
  if (num_tasks > 0) sg4::Actor::create("begin", outside, begin);
  engine.run();
  std::FILE* out = std::fopen(argv[2], "wb");
  if (out == nullptr) return 1;
  std::fwrite(starts.data(), sizeof(i64), starts.size(), out);
  std::fclose(out);
  std::printf("%.0f\n", last_visible);
  return 0;
}
