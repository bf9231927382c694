// Functions of sequences.hpp that steps call; see moves.cpp.
#include "../sequences.hpp"

#include <iterator>

#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {
using u1 = std::uint8_t;
using u2 = std::uint16_t;
using u4 = std::uint32_t;
using u8 = std::uint64_t;
using int32 = std::int32_t;
using int64 = std::int64_t;
#define MOVED(name)                                                   \
  function<&name<u1>>(#name ":u1"), function<&name<u2>>(#name ":u2"), \
      function<&name<u4>>(#name ":u4"), function<&name<u8>>(#name ":u8")
#define INDEXED_OF(name, type)                            \
  function<&name<type, int32>>(#name ":" #type ",int32"), \
      function<&name<type, int64>>(#name ":" #type ",int64")
constexpr Function kFunctions[] = {
    function<&take_offsets<int32>>("take_offsets:int32"),
    function<&take_offsets<int64>>("take_offsets:int64"),
    function<&append_offsets>("append_offsets:"),
    MOVED(append),
    function<&add_offsets>("add_offsets:"),
    MOVED(join),
    function<&lengths<int32>>("lengths:int32"),
    function<&lengths<int64>>("lengths:int64"),
    MOVED(pad),
    INDEXED_OF(unpad, u1),
    INDEXED_OF(unpad, u2),
    INDEXED_OF(unpad, u4),
    INDEXED_OF(unpad, u8),
    function<&pool<float>>("pool:float32"),
    function<&pool<double>>("pool:float64"),
    function<&pool<int64>>("pool:int64"),
    function<&pool<int32>>("pool:int32"),
    MOVED(reverse_sentences),
    function<&sentence_softmax<float>>("sentence_softmax:float32"),
    function<&sentence_softmax<double>>("sentence_softmax:float64"),
    MOVED(context),
    MOVED(expand),
    function<&viterbi<float>>("viterbi:float32"),
    function<&viterbi<double>>("viterbi:float64"),
};
}  // namespace

Functions sequences() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace ONERNN_ISA
}  // namespace onernn
