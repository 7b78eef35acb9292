// Both passes of a plain call, without Python: where a GPU is done sooner than Python, most of a call is Python's.
//
// A plan (native.py) lists the launches of each pass. Their arguments are numbers, or places in the pass's memory: a
// counter, the seven arguments, and then
//   forward   room, what is kept for the backward pass, the three outputs;
//   backward  what was kept, room, gradients of the three outputs, gradients of all arguments but the offsets.
// What is not plain, gradients of gradients for instance or a graph that is captured, is left to Python.

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr int GIVEN = 7, A_INP = 0, X = 1, OFFSETS = 2, W = 3, OUTS = 3;
constexpr size_t MOST_SLOTS = 128;  // arguments of a kernel
constexpr uint64_t ALIGNED = 16;    // bytes, which kernels are compiled to expect

// Functions of CUDA's driver and one of Python, which set_up() gets.
using Kernel = void*;
using Stream = void*;
using Size = unsigned;
int (*launch)(Kernel, Size, Size, Size, Size, Size, Size, Size, Stream, void**, void**);
int (*launch_together)(Kernel, Size, Size, Size, Size, Size, Size, Size, Stream, void**);
int (*is_capturing)(Stream, int*);
PyObject* python_backward;

// An error, of a thread that has not used the GPU yet for instance, counts as well: Python knows what to do.
bool captures(Stream stream) {
  int status = 0;
  return is_capturing(stream, &status) != 0 || status != 0;
}

struct Slot {
  int64_t place;  // of memory; below zero for a number
  uint64_t value;  // bytes from its start; or the number's bits
};

struct Launch {
  Kernel kernel;
  Size programs, threads, shared;
  bool together;  // whether all programs have to run at a time
  std::vector<Slot> slots;
};

struct Plan {
  std::vector<Launch> fwd, bwd;  // the latter empty while it is not known
  int64_t kept_bytes, fwd_bytes, bwd_bytes;
  bool counts;
  std::vector<int64_t> a, mu;  // shapes of outputs but for the batch
};

using Held = std::shared_ptr<const Plan>;

struct Memory {
  std::array<uint64_t, 32> at;
  size_t n = 0;

  void add(const Tensor& t) {
    at[n++] = reinterpret_cast<uint64_t>(t.data_ptr());
  }
};

void start(const std::vector<Launch>& launches, const Memory& memory, Stream stream) {
  for (const Launch& one : launches) {
    std::array<uint64_t, MOST_SLOTS> values;
    std::array<void*, MOST_SLOTS> slots;
    for (size_t k = 0; k < one.slots.size(); ++k) {
      auto [place, value] = one.slots[k];
      values[k] = place < 0 ? value : memory.at[place] + value;
      slots[k] = &values[k];
    }
    const auto& [kernel, programs, threads, shared, together, _] = one;
    int error = together
        ? launch_together(kernel, programs, 1, 1, threads, 1, 1, shared, stream, slots.data())
        : launch(kernel, programs, 1, 1, threads, 1, 1, shared, stream, slots.data(), nullptr);
    TORCH_CHECK(error == 0, "a kernel could not be launched, CUDA's error ", error);
  }
}

// Whether somebody in Python wants to know of every operation.
bool watched() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set();
}

// Whether there is nothing to a tensor but its numbers.
bool plain(const Tensor& t) {
  using c10::DispatchKey;
  c10::DispatchKeySet usual({DispatchKey::Dense, DispatchKey::AutogradFunctionality, DispatchKey::ADInplaceOrView});
  auto others = t.key_set() - usual - c10::autocast_dispatch_keyset;
  return others.highestFunctionalityKey() == DispatchKey::Undefined && !t._fw_grad(0).defined();
}

// Contiguous, and where kernels compiled for other tensors expect it.
Tensor laid(const Tensor& t) {
  bool aligned = reinterpret_cast<uint64_t>(t.data_ptr()) % ALIGNED == 0;
  return aligned && t.is_contiguous() ? t : t.clone(at::MemoryFormat::Contiguous);
}

// Makes tensors: the first in PyTorch's usual way, which finds the allocator, the others without asking again.
struct Maker {
  Maker(int64_t n_bytes, const Tensor& like)
      : first(at::empty({n_bytes}, like.options().dtype(at::kByte))),
        allocator(first.storage().allocator()),
        keys(first.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU) {}

  Tensor first;  // bytes
  c10::Allocator* allocator;
  c10::DispatchKeySet keys;

  Tensor operator()(at::IntArrayRef shape, at::ScalarType dtype) const {
    return at::detail::empty_generic(shape, allocator, keys, dtype, std::nullopt);
  }
};

// What programs that wait for each other count on: those of a stream run one by one and leave it as it was.
Tensor counter(Stream stream, const Tensor& like) {
  static std::mutex mutex;
  static auto* counters = new std::map<std::pair<int, Stream>, Tensor>();  // never freed, for CUDA may end before
  std::lock_guard<std::mutex> lock(mutex);
  Tensor& count = (*counters)[{like.device().index(), stream}];
  if (!count.defined()) count = at::zeros({1}, like.options().dtype(at::kInt));
  return count;
}

at::DimVector batched(const variable_list& given, const std::vector<int64_t>& shape) {
  at::DimVector whole;
  if (given[OFFSETS].defined()) {
    whole.push_back(given[OFFSETS].size(0) - 1);
  } else {
    whole.append(given[A_INP].sizes().begin(), given[A_INP].sizes().end() - 1);
  }
  whole.append(shape.begin(), shape.end());
  return whole;
}

// The counter and the arguments, which `held` keeps alive; where samples are not packed nobody reads offsets.
Memory remember(const Plan& plan, const variable_list& given, Stream stream, variable_list& held) {
  held.push_back(plan.counts ? counter(stream, given[W]) : given[W]);
  for (const Tensor& t : given) held.push_back(laid(t.defined() ? t : given[X]));
  Memory memory;
  for (const Tensor& t : held) memory.add(t);
  return memory;
}

struct Route : Node {
  Route(Held plan, PyObject* run, Stream stream)
      : plan(std::move(plan)), run(Py_NewRef(run), getPyInterpreter()), stream(stream) {}

  Held plan;
  c10::SafePyObject run;
  Stream stream;  // the backward pass runs on that of the forward pass
  std::array<SavedVariable, GIVEN> inputs;
  SavedVariable kept;

  std::string name() const override {
    return "RouteBackward";
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& input : inputs) input.reset_data();
    kept.reset_data();
  }

  variable_list apply(variable_list&& douts) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list given;
    for (const SavedVariable& input : inputs) given.push_back(input.unpack());
    Tensor was_kept = kept.unpack();
    bool simple = !plan->bwd.empty() && !at::GradMode::is_enabled() && !watched();
    for (int k = 0; k < OUTS; ++k) {
      if (!douts[k].defined()) douts[k] = at::zeros(batched(given, k ? plan->mu : plan->a), given[W].options());
      simple &= plain(douts[k]);
    }
    for (const Tensor& t : given) simple &= !t.defined() || plain(t);
    return simple && !captures(stream) ? backward(douts, given, was_kept) : by_python(douts, given, was_kept);
  }

 private:
  variable_list backward(const variable_list& douts, const variable_list& given, const Tensor& was_kept) {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::OptionalDeviceGuard guard(given[W].device());
    variable_list held, grads;
    Memory memory = remember(*plan, given, stream, held);
    Maker make(plan->bwd_bytes, given[W]);
    memory.add(was_kept);
    memory.add(make.first);
    for (int k = 0; k < OUTS; ++k) {
      held.push_back(laid(douts[k]));
      memory.add(held.back());
    }
    for (int k = 0; k < GIVEN; ++k) {
      if (k == OFFSETS) continue;
      grads.push_back(make(given[k].sizes(), given[k].scalar_type()));
      memory.add(grads.back());
    }
    start(plan->bwd, memory, stream);
    return grads;
  }

  variable_list by_python(const variable_list& douts, const variable_list& given, const Tensor& was_kept) {
    pybind11::gil_scoped_acquire gil;
    pybind11::handle backward(python_backward), runner(run.ptr(getPyInterpreter()));
    return backward(runner, douts, given, was_kept).cast<variable_list>();
  }
};

// Nodes are held by shared_ptr, or by intrusive_ptr in newer versions of PyTorch.
template <class Pointer, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return std::shared_ptr<Route>(new Route(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Route>(std::forward<Args>(args)...);
  }
}

variable_list forward(const Held& plan, PyObject* run, Stream stream, const variable_list& given) {
  variable_list held, outs;
  Tensor kept;
  {
    pybind11::gil_scoped_release no_gil;
    at::AutoDispatchBelowADInplaceOrView below;
    c10::OptionalDeviceGuard guard(given[W].device());
    Memory memory = remember(*plan, given, stream, held);
    Maker make(plan->fwd_bytes, given[W]);
    kept = make({plan->kept_bytes}, at::kByte);
    memory.add(make.first);
    memory.add(kept);
    for (int k = 0; k < OUTS; ++k) {
      outs.push_back(make(batched(given, k ? plan->mu : plan->a), at::kFloat));
      memory.add(outs.back());
    }
    start(plan->fwd, memory, stream);
  }
  auto& g = given;
  if (torch::autograd::compute_requires_grad(g[0], g[1], g[3], g[4], g[5], g[6])) {
    auto node = make_node<decltype(torch::autograd::Edge::function)>(plan, run, stream);
    node->set_next_edges(torch::autograd::collect_next_edges(g[0], g[1], g[3], g[4], g[5], g[6]));
    for (int k = 0; k < GIVEN; ++k) node->inputs[k] = SavedVariable(given[k], false);
    node->kept = SavedVariable(kept, false);
    torch::autograd::set_history(outs, node);
  }
  return outs;
}

// Addresses of cuLaunchKernel, cuLaunchCooperativeKernel and cuStreamIsCapturing; and Python's backward pass.
PyObject* set_up(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned long long one, together, capturing;
  if (!PyArg_ParseTuple(args, "KKKO", &one, &together, &capturing, &python_backward)) return nullptr;
  Py_INCREF(python_backward);
  launch = reinterpret_cast<decltype(launch)>(one);
  launch_together = reinterpret_cast<decltype(launch_together)>(together);
  is_capturing = reinterpret_cast<decltype(is_capturing)>(capturing);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

std::vector<Launch> read(pybind11::handle written) {
  using Numbers = std::vector<std::pair<int64_t, uint64_t>>;
  std::vector<Launch> launches;
  for (pybind11::handle item : written) {
    auto [kernel, programs, threads, shared, together, slots] =
        item.cast<std::tuple<uint64_t, Size, Size, Size, bool, Numbers>>();
    TORCH_CHECK(slots.size() <= MOST_SLOTS, "a kernel has ", slots.size(), " arguments");
    Launch one{reinterpret_cast<Kernel>(kernel), programs, threads, shared, together, {}};
    for (auto [place, value] : slots) one.slots.push_back({place, value});
    launches.push_back(std::move(one));
  }
  return launches;
}

PyObject* make_plan(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *fwd, *bwd, *a, *mu;
  long long kept_bytes, fwd_bytes, bwd_bytes;
  int counts;
  if (!PyArg_ParseTuple(args, "OOLLLpOO", &fwd, &bwd, &kept_bytes, &fwd_bytes, &bwd_bytes, &counts, &a, &mu))
    return nullptr;
  using Shape = std::vector<int64_t>;
  Plan plan{
      read(fwd), read(bwd), kept_bytes, fwd_bytes, bwd_bytes, counts != 0, pybind11::handle(a).cast<Shape>(),
      pybind11::handle(mu).cast<Shape>()};
  auto forget = [](PyObject* capsule) { delete static_cast<Held*>(PyCapsule_GetPointer(capsule, nullptr)); };
  return PyCapsule_New(new Held(std::make_shared<const Plan>(std::move(plan))), nullptr, forget);
  END_HANDLE_TH_ERRORS
}

// Gets a plan, who runs it in Python, a stream and the arguments; returns None where Python has to run it.
PyObject* route(PyObject*, PyObject* const* args, Py_ssize_t n_args) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(n_args == 3 + GIVEN, "expected ", 3 + GIVEN, " arguments, got ", n_args);
  auto* plan = static_cast<Held*>(PyCapsule_GetPointer(args[0], nullptr));
  Stream stream = PyLong_AsVoidPtr(args[2]);
  if (PyErr_Occurred()) return nullptr;
  if (watched() || captures(stream)) Py_RETURN_NONE;
  variable_list given(GIVEN);
  for (int k = 0; k < GIVEN; ++k) {
    PyObject* arg = args[3 + k];
    if (k == OFFSETS && arg == Py_None) continue;
    if (!THPVariable_CheckExact(arg)) Py_RETURN_NONE;
    given[k] = THPVariable_Unpack(arg);
    if (!plain(given[k])) Py_RETURN_NONE;
  }
  variable_list outs = forward(*plan, args[1], stream, given);
  PyObject* tuple = PyTuple_New(OUTS);
  for (int k = 0; k < OUTS; ++k) PyTuple_SET_ITEM(tuple, k, THPVariable_Wrap(outs[k]));
  return tuple;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, nullptr},
    {"make_plan", make_plan, METH_VARARGS, nullptr},
    {"route", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(route)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "capsroute_native", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_capsroute_native() {
  return PyModule_Create(&definition);
}
