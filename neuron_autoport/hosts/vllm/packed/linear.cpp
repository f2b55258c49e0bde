// y = x Wᵀ + b in float32 on packed weights: the product that a step of a model spends most of its time in.
//
// A weight is kept in panels, in as few bytes as it needs (weight.h). While a piece of a panel is multiplied, the next is
// fetched into the second-level cache: with few rows of x a product waits for memory, with many for the multipliers, in
// between for both in turn unless they overlap. Few rows read narrow values as they go; for many, a piece is brought
// into float32 once.
// Each output is one sum in the order of `in`: a row does not depend on the rows that run with it.
//
// Two weights of one size that read the same x may be packed as halves. Then act(x W1ᵀ) * (x W2ᵀ), the inside of a gated
// MLP, is made while both sums are in registers.
//
// LANES: floats of a vector register. ROWS: rows whose sums with one panel (two registers each) fit into registers.
// DEPTH: inputs of a piece of a panel, so that it stays in the second-level cache.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "activation.h"
#include "result.h"
#include "weight.h"

namespace {

constexpr int64_t kLine = 64;              // bytes
constexpr int64_t kBlock = 16 * ROWS;      // rows of x that meet all panels before the next rows do
constexpr int64_t kFew = ROWS + ROWS / 3;  // up to so many, reading a panel costs more than reading x

// A piece of P panels that follow each other, and where the next such piece is.
struct Piece {
  const char *weights, *next;   // rows of the first panel
  int64_t stride, next_stride;  // from panel to panel
  Format format;
  char* wide;                   // [panels, depth, kPanel] to which a narrow piece goes in float32, or null
  const float* bias;            // of these columns, or null
  int64_t depth, columns;       // columns: from the first of the piece to the last of y, or of a half
  int64_t half;                 // columns of a half, or 0: not packed as halves
  Act act;                      // of the first half, which is then multiplied with the second
  bool first;                   // else the sums so far are in y

  // Where the columns of register v are, and how many of them there are.
  int64_t place(int v) const { return half ? v / 2 * LANES + v % 2 * half : v * LANES; }
  int64_t count(int v) const { return std::clamp<int64_t>(columns - (half ? v / 2 : v) * LANES, 0, LANES); }
};

template <int R, int V>
void load(Vector (&sums)[R][V], const Piece& piece, const float* y, int64_t width) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      for (int64_t i = piece.place(v), c = 0; c < piece.count(v); ++c)
        sums[r][v][c] = !piece.first ? y[r * width + i + c] : piece.bias ? piece.bias[i + c] : 0.0f;
}

inline void put(const Vector& sums, int64_t count, float* y) {
  if (count == LANES)
    *reinterpret_cast<Unaligned*>(y) = sums;
  else
    for (int64_t c = 0; c < count; ++c) y[c] = sums[c];
}

// act(first half) * second half of `rows` rows, each with `registers` sums. Not inlined: each of the kinds below calls it.
__attribute__((noinline)) void store_activated(const Vector* sums, int rows, int registers, const Piece& piece,
                                               float* y, int64_t width) {
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < registers; v += 2, sums += 2)
      put(activated(sums[0], piece.act) * sums[1], piece.count(v), y + r * width + piece.place(v));
}

template <int R, int V>
void store(const Vector (&sums)[R][V], const Piece& piece, float* y, int64_t width) {
  if (piece.act) return store_activated(&sums[0][0], R, V, piece, y, width);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) put(sums[r][v], piece.count(v), y + r * width + piece.place(v));
}

// R rows of x [R, in] times P panels of a piece, into y [R, width]. With every four inputs, so many Lines of each panel
// of the next piece are fetched, from line `begin` on.
template <int R, int P, int Bytes, int Lines>
void multiply(const float* x, int64_t in, const Piece& piece, float* y, int64_t width, int64_t begin) {
  Vector sums[R][2 * P] = {};
  if (piece.bias || !piece.first) load(sums, piece, y, width);
  const char *row = piece.weights, *next = piece.next + begin * kLine;
  const Reader<Bytes> reader(piece.format);
  auto step = [&](int64_t k) __attribute__((always_inline)) {
    Vector weights[2 * P];
    for (int p = 0; p < P; ++p) reader.read(row + p * piece.stride, weights[2 * p], weights[2 * p + 1]);
    if constexpr (P > 1 && Bytes < 4)
      for (int v = 0; v < 2 * P; ++v)
        reinterpret_cast<Vector*>(piece.wide)[v / 2 * piece.depth * 2 + k * 2 + v % 2] = weights[v];
    for (int r = 0; r < R; ++r) {
      const Vector value = x[r * in + k] - Vector{};
      for (int v = 0; v < 2 * P; ++v) sums[r][v] += value * weights[v];
    }
    row += kPanel * Bytes;
  };
  int64_t k = 0;
  for (; k + 4 <= piece.depth; k += 4, next += Lines * kLine)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      for (int line = i * Lines / 4; line < (i + 1) * Lines / 4; ++line)
        for (int p = 0; p < P; ++p) __builtin_prefetch(next + p * piece.next_stride + line * kLine, 0, 2);
      step(k + i);
    }
  for (; k < piece.depth; ++k) step(k);
  store(sums, piece, y, width);
}

using Multiply = void (*)(const float*, int64_t, const Piece&, float*, int64_t, int64_t);

template <int P, int Bytes, int Lines, size_t... R>
constexpr std::array<Multiply, sizeof...(R)> by_rows(std::index_sequence<R...>) {
  return {multiply<R + 1, P, Bytes, Lines>...};
}

template <int P, int Bytes, size_t... Halved>
constexpr auto by_lines(std::index_sequence<Halved...>) {
  constexpr int64_t lines = 4 * kPanel * Bytes / kLine / P;
  constexpr std::make_index_sequence<ROWS / P> rows;
  using Kind = decltype(by_rows<P, Bytes, lines>(rows));
  return std::array<Kind, sizeof...(Halved)>{by_rows<P, Bytes, std::max<int64_t>(1, lines >> Halved)>(rows)...};
}

// The rows of x times a piece, in groups as even as can be, each of which fetches its share of the next piece. Of two
// narrow panels the first group, a smaller one for the registers that reading takes, leaves the others a copy in float32.
template <int P, int Bytes>
void multiply_rows(const float* x, int64_t rows, int64_t in, Piece piece, int64_t lines, float* y, int64_t out) {
  constexpr int64_t kinds = P == 1 && Bytes < 4 ? 1 : P + 1;  // few rows of a narrow panel are one group
  static constexpr auto first = by_lines<P, Bytes>(std::make_index_sequence<kinds>());
  static constexpr auto others = by_lines<P, P == 1 ? Bytes : 4>(std::make_index_sequence<kinds>());
  constexpr int64_t most = ROWS / P, most_first = P > 1 && Bytes < 4 ? most * 5 / 6 : most;
  const int64_t groups = 1 + (std::max<int64_t>(rows - most_first, 0) + most - 1) / most;
  const auto kind = std::min<int64_t>(std::bit_width<uint64_t>(groups) - P, kinds - 1);
  for (int64_t group = 0, row = 0; group < groups; ++group) {
    const int64_t even = (rows - row) / (groups - group), count = group ? even : std::min(even, most_first);
    (group ? others : first)[kind][count - 1](x + row * in, in, piece, y + row * out, out, group * (lines / groups));
    row += count;
    if (group || !piece.wide) continue;
    piece.weights = piece.wide;
    piece.stride = piece.depth * kPanel * sizeof(float);
  }
}

// What one product is of. columns: of y, or of a half. width: of a row of y.
struct Product {
  Weight weight;
  const float* bias;
  int64_t columns, half, width;
  Act act;
};

// Memory of this thread for a piece in float32.
char* wide_piece() {
  struct Row {
    Vector registers[2];
  };
  thread_local std::vector<Row> held(2 * DEPTH);
  return reinterpret_cast<char*>(held.data());
}

// Rows of x [rows, in] times the panels from `begin` to `end`, P at a time.
template <int P, int Bytes>
void multiply_panels(const float* x, int64_t rows, const Product& of, float* y, int64_t begin, int64_t end) {
  const Weight& weight = of.weight;
  const int64_t part = of.half ? LANES : kPanel, stride = weight.in * weight.row();
  char* wide = P > 1 && Bytes < 4 ? wide_piece() : nullptr;
  for (int64_t panel = begin; panel < end && panel * part < of.columns; panel += P)
    for (int64_t k = 0; k < weight.in; k += DEPTH) {
      const int64_t column = panel * part, after = k + DEPTH, depth = std::min<int64_t>(DEPTH, weight.in - k);
      const char* next = after < weight.in ? weight.at(panel, after) : weight.at(panel + P, 0);
      const Piece piece{weight.at(panel, k), next, stride, stride, weight.format, wide,
                        of.bias ? of.bias + column : nullptr, depth, of.columns - column, of.half, of.act, k == 0};
      multiply_rows<P, Bytes>(x + k, rows, weight.in, piece, depth * weight.row() / kLine, y + column, of.width);
    }
}

template <int P>
constexpr auto multiplier(int64_t bytes) {
  return bytes == 2 ? multiply_panels<P, 2> : bytes == 3 ? multiply_panels<P, 3> : multiply_panels<P, 4>;
}

// A packed weight is handed on as a tensor of numbers, one of which is its address: tensors of one shape for weights of
// any format, so that layers are one graph to a compiler. Whoever holds it holds the memory as well.
const char kMark = 0;  // its address, in every handle: one of another process is none
constexpr int64_t kNumbers = 8;

void write_handle(const Weight& weight, const Tensor& handle) {
  auto* to = static_cast<int64_t*>(handle.mutable_data_ptr());
  const auto& [data, in, panels, halves, format] = weight;
  for (int64_t number : {reinterpret_cast<int64_t>(&kMark), reinterpret_cast<int64_t>(data), in, panels,
                         int64_t{halves}, format.bytes, format.shift, format.base})
    *to++ = number;
}

Weight weight_of(const Tensor& handle, bool halves) {
  const bool numbers = handle.scalar_type() == torch::headeronly::ScalarType::Long && handle.numel() == kNumbers;
  STD_TORCH_CHECK(numbers && handle.is_contiguous(), "no handle of a packed weight");
  const auto* from = static_cast<const int64_t*>(handle.const_data_ptr());
  STD_TORCH_CHECK(from[0] == reinterpret_cast<int64_t>(&kMark), "no handle of a weight packed in this process");
  STD_TORCH_CHECK(from[4] == halves, "weight of another packing");
  return {reinterpret_cast<char*>(from[1]), from[2], from[3], halves, {from[5], from[6], from[7]}};
}

// weight [out, in] float32 -> its memory, and its handle.
std::tuple<Tensor, Tensor> packed(Tensor weight, bool halves) {
  using torch::headeronly::ScalarType;
  STD_TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == ScalarType::Float, "a weight [out, in] in float32");
  weight = torch::stable::contiguous(weight);
  const int64_t out = weight.size(0), in = weight.size(1), pair = halves ? 2 * LANES : 2 * kPanel;
  STD_TORCH_CHECK(!halves || out % 2 == 0, "two halves");
  const auto* values = static_cast<const float*>(weight.const_data_ptr());
  Weight made{nullptr, in, 2 * (((halves ? out / 2 : out) + pair - 1) / pair), halves, narrowest(values, out * in)};
  Tensor memory = torch::stable::new_empty(weight, {made.panels * in * made.row()}, ScalarType::Byte);
  Tensor handle = torch::stable::new_empty(weight, {kNumbers}, ScalarType::Long);
  made.data = static_cast<char*>(memory.mutable_data_ptr());
  pack_into(made, values, out);
  write_handle(made, handle);
  return {memory, handle};
}

Tensor run(Tensor x, const Tensor& handle, int64_t out, const std::optional<Tensor>& bias, bool halves, Act act) {
  const Weight weight = weight_of(handle, halves);
  x = torch::stable::contiguous(x);
  const int64_t in = x.size(-1), rows = in ? x.numel() / in : 0, pairs = weight.panels / 2;
  const int64_t columns = halves ? out / 2 : out, pair = halves ? 2 * LANES : 2 * kPanel;
  for (const Tensor& given : {x, bias.value_or(x)})
    STD_TORCH_CHECK(given.scalar_type() == torch::headeronly::ScalarType::Float, "x and bias are float32");
  STD_TORCH_CHECK(weight.in == in, "as many inputs as the weight has");
  STD_TORCH_CHECK(pairs == (columns + pair - 1) / pair, "as many outputs as the weight has");
  STD_TORCH_CHECK(!bias || (bias->numel() == out && bias->is_contiguous()), "one bias for each output, in one piece");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = act ? columns : out;
  Tensor y = empty_result(x, shape);
  const Product product{weight, bias ? static_cast<const float*>(bias->const_data_ptr()) : nullptr,
                        columns, halves ? columns : 0, shape.back(), act};
  const auto* from = static_cast<const float*>(x.const_data_ptr());
  auto* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t row = 0; row < rows; row += kBlock) {
    const int64_t count = std::min(kBlock, rows - row);
    const bool few = count <= (weight.format.bytes < 4 ? ROWS : kFew);  // narrow: each group would read anew
    auto* multiplied = few ? multiplier<1>(weight.format.bytes) : multiplier<2>(weight.format.bytes);
    torch::stable::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
      multiplied(from + row * in, count, product, to + row * product.width, 2 * begin, 2 * end);
    });
  }
  return y;
}

// x [..., in], handle of a weight [out, in], bias [out] or none -> [..., out], in float32.
Tensor packed_linear(Tensor x, Tensor handle, int64_t out, std::optional<Tensor> bias) {
  return run(x, handle, out, bias, false, kNone);
}

// The same for a weight packed as halves; with an act (see Act) -> act(first half) * second half, [..., out / 2].
Tensor packed_halves(Tensor x, Tensor handle, int64_t out, std::optional<Tensor> bias, int64_t act) {
  STD_TORCH_CHECK(out % 2 == 0, "two halves");
  STD_TORCH_CHECK(act >= kNone && act <= kGELUTanh, "an activation of this kernel");
  STD_TORCH_CHECK(!act || x.size(-1) <= DEPTH, "an activation of sums that are made in one piece");
  return run(x, handle, out, bias, true, static_cast<Act>(act));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(neuron_autoport, library) {
  library.def("pack(Tensor weight, bool halves) -> (Tensor, Tensor)");
  library.def("packed_linear(Tensor x, Tensor handle, int out, Tensor? bias) -> Tensor");
  library.def("packed_halves(Tensor x, Tensor handle, int out, Tensor? bias, int act) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(neuron_autoport, CPU, library) {
  library.impl("pack", TORCH_BOX(&packed));
  library.impl("packed_linear", TORCH_BOX(&packed_linear));
  library.impl("packed_halves", TORCH_BOX(&packed_halves));
}
