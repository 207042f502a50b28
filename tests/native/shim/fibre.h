// A function call with a stack of its own that can be left and resumed.
//
// On x86-64 the switch is a dozen instructions, elsewhere (and with SLIPFORM_UCONTEXT) the C
// library's ten times slower one. AddressSanitizer is told about each switch.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if !defined(__x86_64__) && !defined(SLIPFORM_UCONTEXT)
#define SLIPFORM_UCONTEXT
#endif
#ifdef SLIPFORM_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SLIPFORM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLIPFORM_ASAN 1
#endif
#endif
#ifdef SLIPFORM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace slipform {
namespace gpu {
namespace host {

#ifndef SLIPFORM_UCONTEXT
// GCC would otherwise conclude from the assembly, which names no registers, that none is lost.
#ifdef __clang__
#define SLIPFORM_OPAQUE noinline
#else
#define SLIPFORM_OPAQUE noipa
#endif

// Pushes the registers that a call preserves, stores the stack pointer in *save, and goes on at the
// other stack pointer, which was stored in the same way. By the x86-64 System V convention the
// arguments are in rdi and rsi.
__attribute__((naked, SLIPFORM_OPAQUE)) inline void switch_stack(void** /*save*/,
                                                                 void* /*resume*/) {
  asm("pushq %rbp\n\t"
      "pushq %rbx\n\t"
      "pushq %r12\n\t"
      "pushq %r13\n\t"
      "pushq %r14\n\t"
      "pushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\t"
      "popq %r14\n\t"
      "popq %r13\n\t"
      "popq %r12\n\t"
      "popq %rbx\n\t"
      "popq %rbp\n\t"
      "ret");
}
#endif

class Fibre {
 public:
  using Entry = void (*)();

  // The fibre of the thread that creates it: it has that thread's stack.
  Fibre() = default;

  // A fibre for start(). A page without access ends the stack, so that an overflow is a fault.
  explicit Fibre(size_t stack_bytes) : size(stack_bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* pages = mmap(nullptr, size + page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    mprotect(pages, page, PROT_NONE);
    mapping = pages;
    bottom = static_cast<char*>(pages) + page;
  }
  ~Fibre() {
    if (mapping != nullptr) munmap(mapping, size + (static_cast<char*>(bottom) - mapping_start()));
  }
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // The next switch to this fibre calls entry(), which must never return.
  void start(Entry function) {
    entry = function;
#ifdef SLIPFORM_UCONTEXT
    getcontext(&context);
    context.uc_stack.ss_sp = bottom;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, begin, 0);
#else
    // Six registers and begin() as the address to return to, then a null address for unwinders. A
    // function begins with its stack pointer 8 short of a multiple of 16.
    void** top = reinterpret_cast<void**>(static_cast<char*>(bottom) + size) - 1;
    top[0] = nullptr;
    top[-1] = reinterpret_cast<void*>(&begin);
    for (int i = 2; i <= 7; ++i) top[-i] = nullptr;
    stack_pointer = top - 7;
#endif
  }

  // Leaves `from`, which is running, for `to`. Returns when something switches back.
  static void switch_to(Fibre& from, Fibre& to) { leave(from, to, false); }

  // The same, for good: `from` is not resumed before another start().
  [[noreturn]] static void end(Fibre& from, Fibre& to) {
    leave(from, to, true);
    __builtin_unreachable();
  }

  // Ended and abandoned calls leave their marks on AddressSanitizer's map of the stack.
  void forget() {
#ifdef SLIPFORM_ASAN
    __asan_unpoison_memory_region(bottom, size);
#endif
  }

 private:
  char* mapping_start() const { return static_cast<char*>(mapping); }

  static void leave(Fibre& from, Fibre& to, [[maybe_unused]] bool for_good) {
    leaving = &from;
    arriving = &to;
#ifdef SLIPFORM_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#ifdef SLIPFORM_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    switch_stack(&from.stack_pointer, to.stack_pointer);
#endif
    arrive(from.fake_stack);
  }

  // AddressSanitizer knows the bounds of the stack that was left: so those of the first thread's.
  static void arrive([[maybe_unused]] void* fake_stack) {
#ifdef SLIPFORM_ASAN
    const void* left = nullptr;
    __sanitizer_finish_switch_fiber(fake_stack, &left, &leaving->size);
    leaving->bottom = const_cast<void*>(left);
#endif
  }

  static void begin() {
    arrive(nullptr);
    arriving->entry();
  }

  inline static Fibre *leaving = nullptr, *arriving = nullptr;

  void* mapping = nullptr;
  void* bottom = nullptr;
  size_t size = 0;
  Entry entry = nullptr;
  void* fake_stack = nullptr;
#ifdef SLIPFORM_UCONTEXT
  ucontext_t context;
#else
  void* stack_pointer = nullptr;
#endif
};

}  // namespace host
}  // namespace gpu
}  // namespace slipform
