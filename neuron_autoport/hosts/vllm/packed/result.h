// Memory for large results, which this process keeps for the next result of such a size.
//
// malloc gives 32 MiB and more back to the system as soon as it is free, and the system clears every page of it anew
// for the next product: for logits [32, 262144] 8192 page faults, a fifth of the product's time. Whether it does hangs
// on what else is in the heap, so that one process is slower than another.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

namespace {

using torch::stable::Tensor;

constexpr int64_t kLarge = 1 << 25, kKept = 1 << 28;  // bytes: from there on, and of one that is not given back at most
constexpr int64_t kPage = 1 << 21;                    // bytes of a large page

struct Block {
  char* base = nullptr;
  int64_t size = 0;  // of what can be asked of it
};

// One block that is free at the moment.
struct Spare {
  std::mutex mutex;
  Block block;

  Block swap(Block other) {
    const std::lock_guard lock(mutex);
    return std::exchange(block, other);
  }
};

inline Spare& spare() {
  static Spare& held = *new Spare;  // never destroyed: a tensor may outlive whatever is
  return held;
}

// A block of at least so many bytes, and at most twice as many; one that is free, if it is such a one.
inline Block taken(int64_t bytes) {
  const Block found = spare().swap({});
  if (found.base && bytes <= found.size && found.size <= 2 * bytes) return found;
  std::free(found.base);
  const int64_t size = (bytes + kPage - 1) / kPage * kPage;
  auto* base = static_cast<char*>(std::aligned_alloc(kPage, size));
  STD_TORCH_CHECK(base, "no memory for a result of ", bytes, " bytes");
  madvise(base, size, MADV_HUGEPAGE);  // a wish
  return {base, size};
}

inline void give_back(Block block) {
  if (block.size <= kKept) block = spare().swap(block);
  std::free(block.base);
}

// A tensor of float32 on the CPU, its values undefined; its memory is free again when nobody holds it.
inline Tensor empty_result(const Tensor& like, const std::vector<int64_t>& shape) {
  int64_t bytes = sizeof(float);
  std::vector<int64_t> strides(shape.size());
  for (size_t i = shape.size(); i-- > 0; bytes *= shape[i]) strides[i] = bytes / sizeof(float);
  if (bytes < kLarge) return torch::stable::new_empty(like, shape);
  const Block block = taken(bytes);
  return torch::stable::from_blob(block.base, shape, strides, like.device(), like.scalar_type(),
                                  [block](void*) { give_back(block); });
}

}  // namespace
