// Reads compiled models. engine/compiling.py writes them; design/0073 has the format. Whatever a
// file says may be wrong: no index, count, size or offset is used before it has been checked.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "compiled.hpp"
#include "nests.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {

constexpr char kMagic[8] = {'o', 'n', 'e', 'r', 'n', 'n', '\r', '\n'};
constexpr std::int64_t kFormat = 2, kHeader = 5;  // kHeader: integers in the header
static_assert(sizeof(onernn_spec) % 8 == 0 && sizeof(onernn_part) % 8 == 0);

[[noreturn]] void damaged(const std::string& why) {
  throw Failure{ONERNN_DAMAGED,
                "expected a whole file of onernn compile: " + why + "; compile the model again"};
}
void expect(bool holds, const char* what) {
  if (!holds) damaged(what);
}

/// Reads the integers of a file one after the other.
class Reader {
 public:
  Reader(const std::int64_t* begin, const std::int64_t* end) : at_(begin), end_(end) {}

  std::int64_t next() {
    expect(at_ < end_, "it ends too early");
    return *at_++;
  }
  /// Reads an integer that must be from `least` to `end` - 1; an error names it `what`.
  std::int64_t below(std::int64_t end, const char* what, std::int64_t least = 0) {
    const std::int64_t value = next();
    expect(value >= least && value < end, what);
    return value;
  }
  /// Reads how many items follow. Each item has at least `words` integers.
  std::int64_t count(std::int64_t words = 1) {
    return below((end_ - at_) / words + 1, "a count exceeds the file");
  }
  bool flag() { return below(2, "neither yes nor no") != 0; }
  const std::int64_t* take(std::int64_t words) {
    expect(words >= 0 && words <= end_ - at_, "it ends too early");
    return std::exchange(at_, at_ + words);
  }
  std::string text() {
    const std::int64_t size = below((end_ - at_) * 8, "a text exceeds the file");
    const std::string result(reinterpret_cast<const char*>(take((size + 7) / 8)),
                             static_cast<std::size_t>(size));
    expect(result.find('\0') == std::string::npos, "a text contains a NUL");
    return result;
  }
  Numbers below_each(std::int64_t end, const char* what) {
    Numbers result(static_cast<std::size_t>(count()));
    for (std::int64_t& one : result) one = below(end, what);
    return result;
  }
  template <class T>
  T structure() {
    T result;
    std::memcpy(&result, take(sizeof(T) / 8), sizeof(T));
    return result;
  }
  bool is_at_end() const { return at_ == end_; }
  const std::int64_t* at() const { return at_; }

 private:
  const std::int64_t *at_, *end_;
};

struct Blob {
  const unsigned char* begin;
  std::int64_t bytes;
};

std::int64_t width_of(const std::string& dtype) {
  constexpr struct {
    const char* name;
    std::int64_t width;
  } kTypes[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"int64", 8},
                {"int32", 4},   {"int16", 2},   {"int8", 1},    {"uint8", 1},
                {"bool", 1},    {"uint16", 2},  {"uint32", 4},  {"uint64", 8}};
  for (const auto& each : kTypes)
    if (dtype == each.name) return each.width;
  damaged("a dtype is unknown");
}

/// A place of a plan's values. It has memory of its own, or is inside the memory of a different
/// place, its root.
struct Place {
  std::int64_t root = 0, align = 0, numbers = -1, first = 0, last = INT64_MAX;
};

/// Reads a plan's integers, in which a function is an index, not an address; see onernn_plan in
/// engine.cpp.
class PlanReader {
 public:
  PlanReader(Compiled& model, const std::vector<const Function*>& functions,
             const std::vector<const Formula*>& formulas, const std::vector<Blob>& blobs)
      : model_(model), functions_(functions), formulas_(formulas), blobs_(blobs) {}

  void read(const std::int64_t* begin, std::int64_t count) {
    Reader in(begin, begin + count);
    model_.words.assign(begin, begin + count);
    begin_ = begin;
    for (std::int64_t names = in.count(); names > 0; --names)
      inner_.push_back(in.below(INT32_MAX, "the place of a size", -1) < 0);
    names_ = static_cast<std::int64_t>(inner_.size());
    for (std::int64_t k = 0; k < names_; ++k) most_dim_ = (std::max)(most_dim_, begin[1 + k]);
    for (std::int64_t sizes = in.count(2); sizes > 0; --sizes) {
      in.below(INT64_MAX, "a divisor", 1);
      bool inner = false;
      for (std::int64_t terms = in.count(2); terms > 0; --terms) {
        in.next();
        for (const std::int64_t name : in.below_each(this->sizes(), "a size before it is known"))
          inner = inner || inner_[static_cast<std::size_t>(name)];
      }
      inner_.push_back(inner);
    }
    model_.dims = static_cast<std::int64_t>(in.below_each(sizes(), "a size").size());
    expect(most_dim_ < model_.dims, "the place of a size");
    places_.resize(static_cast<std::size_t>(in.count()));
    for (Place& each : places_) each.root = place(in);
    for (const Place& each : places_)
      expect(at(each.root).root == each.root, "a value inside of one that is inside of another");
    for (const bool is_output : {false, true})
      for (std::int64_t left = in.count(4); left > 0; --left) {
        const std::int64_t where = root(in), numbers = size(in), most = known_size(in);
        const std::int64_t width = this->width(in);
        expect(is_output || is_known(numbers), "the size of an input that a step finds");
        own(where, width, is_output ? most : numbers);
        if (is_output)
          model_.written.push_back({where, most, width});
        else
          inputs_.push_back(where);
      }
    for (std::int64_t left = in.count(5); left > 0; --left) {
      const std::int64_t where = root(in), numbers = known_size(in);
      width(in);
      own(where, 64, numbers);
      at(where).first = in.next();
      at(where).last = in.next();
    }
    const std::int64_t constants = in.count();
    expect(constants % 3 == 0, "a constant");
    for (std::int64_t left = constants; left > 0; left -= 3) {
      own(root(in), 64, -1);
      const std::int64_t index = in.at() - begin;
      const Blob& blob = blobs_[static_cast<std::size_t>(
          in.below(static_cast<std::int64_t>(blobs_.size()), "a constant"))];
      model_.words[static_cast<std::size_t>(index)] = reinterpret_cast<std::intptr_t>(blob.begin);
      expect(in.next() == blob.bytes, "a constant of another size");
    }
    read_steps(in);
    expect(in.is_at_end(), "more than a plan");
  }

  std::int64_t size(Reader& in) { return in.below(sizes(), "a size"); }
  std::int64_t place(Reader& in) {
    return in.below(static_cast<std::int64_t>(places_.size()), "a place");
  }
  bool is_known(std::int64_t size) const { return !inner_[static_cast<std::size_t>(size)]; }
  std::int64_t steps() const { return static_cast<std::int64_t>(model_.steps.size()); }
  std::int64_t numbers(std::int64_t place) { return at(place).numbers; }
  std::int64_t align(std::int64_t place) { return at(place).align; }
  /// Says whether the place is a caller's memory that no earlier input of the file has named.
  bool takes_input(std::int64_t place) {
    const auto found = std::find(inputs_.begin(), inputs_.end(), place);
    if (found == inputs_.end()) return false;
    inputs_.erase(found);
    return true;
  }
  bool has_all_inputs() const { return inputs_.empty(); }

 private:
  std::int64_t sizes() const { return static_cast<std::int64_t>(inner_.size()); }
  Place& at(std::int64_t place) { return places_[static_cast<std::size_t>(place)]; }
  std::int64_t root(Reader& in) {
    const std::int64_t where = place(in);
    expect(at(where).root == where, "memory inside of other memory");
    return where;
  }
  std::int64_t width(Reader& in) {
    const std::int64_t bytes = in.next();
    expect(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8, "the bytes of a number");
    return bytes;
  }
  void own(std::int64_t place, std::int64_t align, std::int64_t numbers) {
    expect(at(place).align == 0, "two values at one place");
    at(place).align = align;
    at(place).numbers = numbers;
  }

  void read_steps(Reader& in) {
    const std::int64_t count = in.count(2);
    std::vector<Reader> words;
    for (std::int64_t step = 0; step < count; ++step) {
      Guarded guarded{};
      guarded.kind = in.next();
      const std::int64_t length = in.count();
      const std::int64_t* const from = in.take(length);
      guarded.words = model_.words.data() + (from - begin_);
      model_.steps.push_back(guarded);
      words.emplace_back(from, from + length);
    }
    // First, so that earlier steps know the alignment.
    for (std::int64_t step = 0; step < count; ++step)
      if (model_.steps[static_cast<std::size_t>(step)].kind == kView) {
        Reader in_step = words[static_cast<std::size_t>(step)];
        const std::int64_t inner = place(in_step), around = root(in_step);
        size(in_step);
        const std::int64_t align = (std::min)(width(in_step), at(around).align);
        expect(inner != around && at(inner).root == around, "a part of another value");
        expect(at(inner).align == 0 || at(inner).align == align, "a part of other numbers");
        at(inner).align = align;
      }
    for (step_ = 0; step_ < count; ++step_) {
      Guarded& step = model_.steps[static_cast<std::size_t>(step_)];
      Reader& in_step = words[static_cast<std::size_t>(step_)];
      if (step.kind == kCall)
        call(in_step, step);
      else if (step.kind == kNest)
        nest(in_step, step);
      else if (step.kind == kLayer)
        layer(in_step, step);
      else if (step.kind == kView)
        use(place(in_step), 1), use(root(in_step), 1), in_step.take(2);
      else if (step.kind == kJump)
        jump(in_step, count);
      else
        expect(step.kind == kRefuse, "a step that the library does not have");
      expect(in_step.is_at_end(), "more words than the step has");
    }
  }

  /// Checks that the current step may read or write elements of `width` bytes at a place.
  std::int64_t use(std::int64_t place, std::int64_t width) {
    const Place& own = at(place);
    const Place& memory = at(own.root);
    expect(width <= own.align, "numbers of another type");
    expect(memory.first <= step_ && step_ <= memory.last, "memory of another step");
    return place;
  }
  /// Reads the index of a size that the inputs decide. Sizes of memory must be known before any
  /// step runs.
  std::int64_t known_size(Reader& in) {
    const std::int64_t result = size(in);
    expect(is_known(result), "memory whose size a step finds");
    return result;
  }
  std::int64_t size_of(Reader& in, bool& inner) {
    const std::int64_t result = size(in);
    inner = inner || !is_known(result);
    return result;
  }

  void call(Reader& in, Guarded& step) {
    const std::int64_t number =
        in.below(static_cast<std::int64_t>(functions_.size()), "the number of a function");
    step.function = functions_[static_cast<std::size_t>(number)];
    step.rule = rule_of(step.function->name);
    expect(step.rule || step.function->counts, "a function that no file may name");
    word(step, 0) = reinterpret_cast<std::intptr_t>(step.function);
    expect(in.flag() == (std::strchr(step.function->takes, 'f') != nullptr),
           "a size that is found");
    step.always = depends_on_contents(step.rule);
    Numbers read, written;
    for (std::size_t i = 0; step.function->takes[i]; ++i) {
      const char letter = step.function->takes[i];
      if (letter == 'r' || letter == 'w') {
        const std::int64_t where =
            in.below(static_cast<std::int64_t>(places_.size()), "a place", -1);
        if (where < 0) {
          expect(in.next() == -1, "the size of nothing");
          continue;
        }
        use(where, step.function->widths[i]);
        size_of(in, step.always);
        (letter == 'w' ? written : read).push_back(at(where).root);
      } else if (letter == 's') {
        size_of(in, step.always);
      } else if (letter == 'f') {
        const std::int64_t name = in.below(names_, "a size that is found");
        expect(begin_[1 + name] == -1, "a size that the inputs have");
      } else if (letter == 'd') {
        in.next();
      } else if (letter == 'D') {
        for (std::int64_t left = in.below(Dims::kMost + 1, "so many axes"); left > 0; --left)
          size_of(in, step.always);
      }
    }
    std::sort(written.begin(), written.end());
    expect(std::adjacent_find(written.begin(), written.end()) == written.end(),
           "memory written twice");
    if (depends_on_contents(step.rule))  // what a rule has read must not change before the call
      for (const std::int64_t one : written)
        expect(std::find(read.begin(), read.end(), one) == read.end(), "memory read and written");
  }

  void nest(Reader& in, Guarded& step) {
    constexpr std::int64_t kOperands = Nests::kOperands;
    const std::int64_t rank = in.below(Dims::kMost + 1, "so many loops");
    for (std::int64_t axis = 0; axis < rank; ++axis) size_of(in, step.always);
    const std::int64_t reads = in.below(kOperands, "so many operands");
    std::vector<std::int64_t> widths;
    for (std::int64_t k = 0; k <= reads; ++k) {
      const std::int64_t where = place(in);
      widths.push_back(width(in));
      use(where, widths.back());
      if (k == 0) {
        step.room = at(at(where).root).numbers;
        expect(step.room >= 0, "a constant that is written");
      }
      for (std::int64_t axis = 0; axis <= rank; ++axis) size(in);
    }
    const std::int64_t numbers = in.below(kOperands, "so many numbers", -1);
    if (numbers < 0)
      return expect(reads == 1 && widths[0] == widths[1], "numbers that change as they move");
    for (std::int64_t left = numbers; left > 0; --left) {
      in.next();
      widths.push_back(width(in));
    }
    const std::int64_t formulas = in.below(kOperands, "so many formulas", 1);
    expect(reads + 1 + numbers + formulas <= kOperands, "so many operands");
    for (std::int64_t left = formulas; left > 0; --left) {
      const std::int64_t index = in.at() - begin_;
      const Formula& formula = *formulas_[static_cast<std::size_t>(
          in.below(static_cast<std::int64_t>(formulas_.size()), "the number of a formula"))];
      model_.words[static_cast<std::size_t>(index)] = reinterpret_cast<std::intptr_t>(&formula);
      const auto takes =
          static_cast<std::int64_t>(std::strlen(reinterpret_cast<const char*>(formula.widths)) - 1);
      expect(in.next() == takes, "as many arguments as a formula takes");
      for (std::int64_t a = 0; a < takes; ++a) {
        const std::int64_t operand =
            in.below(static_cast<std::int64_t>(widths.size()), "an operand", 1);
        expect(widths[static_cast<std::size_t>(operand)] == formula.widths[1 + a],
               "numbers of another type");
      }
      widths.push_back(formula.widths[0]);
    }
    expect(widths.back() == widths[0], "a result of another type");
  }

  void layer(Reader& in, Guarded& step) {
    const auto is = in.structure<LayerWords>();
    const auto within = [](std::int64_t at, std::size_t count) {
      return at >= 0 && at < static_cast<std::int64_t>(count);
    };
    expect(within(is.layer, model_.layers.size()), "a layer");
    const onernn_spec& spec = model_.layers[static_cast<std::size_t>(is.layer)].spec;
    step.spec = &spec;
    const bool is_lod = is.layout == ONERNN_LOD, lstm = spec.cell == ONERNN_LSTM;
    expect(is_lod || is.layout == ONERNN_TNC, "a layout");
    step.always = is_lod;
    const auto size = [&](std::int64_t number) {
      expect(within(number, inner_.size()), "a size");
      step.always = step.always || !is_known(number);
    };
    size(is.steps);
    size(is.sequences);
    expect(within(is.holds_finite, 2), "neither yes nor no");
    expect(!is.holds_finite || spec.stored == ONERNN_S8 || spec.stored == ONERNN_W8,
           "a layer's type");
    const auto root = [&](const LayerWords::Array& one, std::int64_t width) -> std::int64_t {
      if (one.place == -1) {
        expect(one.numbers == -1 && one.width == -1, "the size of nothing");
        return -1;
      }
      expect(within(one.place, places_.size()), "a place");
      use(one.place, width);
      size(one.numbers);
      expect(one.width == width, "numbers of another type");
      return at(one.place).root;
    };
    const std::int64_t offsets = root(is.offsets, 8), real = spec.stored == ONERNN_F64 ? 8 : 4;
    for (const LayerWords::Array* read : {&is.x, &is.attention, &is.h, &is.c}) root(*read, real);
    for (const LayerWords::Array* written : {&is.y, &is.h_n, &is.c_n, &is.cells})
      expect(root(*written, real) < 0 || at(written->place).root != offsets,
             "memory read and written");
    expect(is_lod == (offsets >= 0), "offsets");
    expect(is.x.place >= 0 && is.y.place >= 0, "a layer without x or y");
    expect(is.attention.place < 0 || spec.attention, "attention");
    expect((is.c.place < 0 && is.c_n.place < 0) || lstm, "a state that the cell does not have");
    expect(is.cells.place < 0 || (lstm && spec.layers == 1 && spec.directions == 1), "all cells");
    expect(!is.holds_finite ||
               (is.h_n.place >= 0 && (is.h.place < 0 || is.h.numbers == is.h_n.numbers)),
           "a state of bytes");
  }

  void jump(Reader& in, std::int64_t steps) {
    const std::int64_t where = in.below(static_cast<std::int64_t>(places_.size()), "a place", -1);
    if (where >= 0) use(where, 1);
    const std::int64_t to = in.below(steps + 1, "where to");
    const std::int64_t operators = in.below(INT32_MAX / 2, "operators of a loop");
    if (to > step_) return;
    expect(operators > 0, "operators of a loop");
    model_.loops = true;
  }

  std::int64_t& word(const Guarded& step, std::int64_t at) {
    return model_.words[static_cast<std::size_t>(step.words - model_.words.data() + at)];
  }

  Compiled& model_;
  const std::vector<const Function*>& functions_;
  const std::vector<const Formula*>& formulas_;
  const std::vector<Blob>& blobs_;
  const std::int64_t* begin_ = nullptr;
  std::vector<bool> inner_;  // per size: whether steps compute it
  std::int64_t names_ = 0, most_dim_ = -1, step_ = 0;
  std::vector<Place> places_;
  Numbers inputs_;
};

Described described(Reader& in, PlanReader& plan) {
  Described value;
  value.name = in.text();
  value.dtype = in.text();
  value.width = width_of(value.dtype);
  value.place = plan.place(in);
  return value;
}

onernn_plan* planned(const Numbers& words) {
  onernn_plan* plan = nullptr;
  if (onernn_plan_new(words.data(), static_cast<std::int64_t>(words.size()), &plan))
    throw std::bad_alloc();
  return plan;
}

}  // namespace

Bytes::Bytes(const char* path) {
  // Without O_NONBLOCK, this call waits until a pipe has a writer.
  const int file = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status{};
  int error = file < 0 || ::fstat(file, &status) ? errno : 0;
  const bool is_file = error || S_ISREG(status.st_mode);
  if (!error && is_file && status.st_size > 0) {
    size = status.st_size;
    void* const at =
        ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, file, 0);
    mapped_ = at != MAP_FAILED;
    error = mapped_ ? 0 : errno;
    begin = static_cast<const unsigned char*>(at);
  }
  if (file >= 0) ::close(file);
  if (error || !is_file)
    throw Failure{ONERNN_NO_FILE,
                  std::string(path) + ": " +
                      (error ? std::strerror(error) : "expected a file, got a folder or a pipe")};
}

Bytes::Bytes(const void* bytes, std::int64_t count) : size(count) {
  auto* const copy = static_cast<unsigned char*>(
      ::operator new(static_cast<std::size_t>(size), std::align_val_t{64}));
  std::memcpy(copy, bytes, static_cast<std::size_t>(size));
  begin = copy;
}

Bytes::~Bytes() {
  if (mapped_)
    ::munmap(const_cast<unsigned char*>(begin), static_cast<std::size_t>(size));
  else
    ::operator delete(const_cast<unsigned char*>(begin), std::align_val_t{64});
}

Compiled::Compiled(std::unique_ptr<Bytes> content) : bytes(std::move(content)) {
  const auto* const words = reinterpret_cast<const std::int64_t*>(bytes->begin);
  expect(bytes->size >= kHeader * 8 && !std::memcmp(words, kMagic, sizeof kMagic),
         "its first bytes are not those of a compiled model");
  if (words[1] != kFormat)
    throw Failure{ONERNN_UNKNOWN, "format of the compiled model: expected " +
                                      std::to_string(kFormat) + ", got " +
                                      std::to_string(words[1]) + "; compile the model again"};
  expect(words[3] == bytes->size, "its size changed after it was written");
  expect(words[2] == onernn_checksum(bytes->begin + 24, bytes->size - 24),
         "its checksum does not match its content");
  expect(words[4] >= kHeader && words[4] <= bytes->size / 8, "a count exceeds the file");
  // A copy, because the mapped file might change.
  const Numbers meta(words + kHeader, words + words[4]);
  Reader in(meta.data(), meta.data() + meta.size());
  const std::int64_t numbers_from = (kHeader + static_cast<std::int64_t>(meta.size())) * 8;

  std::vector<Blob> blobs(static_cast<std::size_t>(in.count(2)));
  for (Blob& each : blobs) {
    const std::int64_t begin = in.below(bytes->size + 1, "where numbers begin", numbers_from);
    expect(begin % 64 == 0, "where numbers begin");
    each = {bytes->begin + begin, in.below(bytes->size - begin + 1, "more numbers than there are")};
  }
  const auto blob = [&](bool may_be_absent = false) -> const Blob* {
    const std::int64_t at =
        in.below(static_cast<std::int64_t>(blobs.size()), "numbers", may_be_absent ? -1 : 0);
    return at < 0 ? nullptr : &blobs[static_cast<std::size_t>(at)];
  };
  std::vector<const Function*> functions(static_cast<std::size_t>(in.count()));
  for (const Function*& each : functions) {
    const std::string name = in.text();
    const char* takes;
    each = static_cast<const Function*>(onernn_call(name.c_str(), &takes));
    if (!each)
      throw Failure{ONERNN_UNKNOWN,
                    "function " + name +
                        " is missing in this version of the library; compile the model again"};
  }
  std::vector<const Formula*> formulas(static_cast<std::size_t>(in.count()));
  for (const Formula*& each : formulas) {
    const std::string name = in.text();
    each = static_cast<const Formula*>(onernn_formula(name.c_str()));
    if (!each)
      throw Failure{ONERNN_UNKNOWN,
                    "formula " + name +
                        " is missing in this version of the library; compile the model again"};
  }
  for (std::int64_t left = in.count(); left > 0; --left) {
    StoredLayer layer;
    layer.spec = in.structure<onernn_spec>();
    const std::int64_t layers = layer.spec.layers, directions = layer.spec.directions;
    expect(layers > 0 && layers <= 1024 && (directions == 1 || directions == 2), "a layer");
    for (std::int64_t k = 0; k < layers * directions; ++k)
      layer.parts.push_back(in.structure<onernn_part>());
    const Blob& numbers = *blob();
    layer.numbers = numbers.begin;
    expect(are_parts(layer.spec, layer.parts.data(), numbers.bytes), "a layer");
    this->layers.push_back(std::move(layer));
  }
  PlanReader reader(*this, functions, formulas, blobs);
  const std::int64_t count = in.count();
  reader.read(in.take(count), count);

  std::int64_t of_inputs = 0;
  for (std::int64_t left = in.count(); left > 0; --left) {
    Input input;
    static_cast<Described&>(input) = described(in, reader);
    expect(reader.takes_input(input.place) && input.width == reader.align(input.place), "an input");
    input.numbers = reader.numbers(input.place);
    for (std::int64_t axes = in.below(Dims::kMost + 1, "so many axes"); axes > 0; --axes) {
      const std::int64_t size = in.next(), least = in.next();
      input.axes.push_back({size, least, in.next()});
    }
    for (std::int64_t levels = in.below(Dims::kMost + 1, "so many levels"); levels > 0; --levels) {
      input.levels.push_back(reader.place(in));
      expect(reader.takes_input(input.levels.back()) && reader.align(input.levels.back()) == 8,
             "offsets of an input");
      input.offsets.push_back(reader.numbers(input.levels.back()));
    }
    input.counts_longest = in.flag();
    expect(!input.counts_longest || !input.levels.empty(), "sequences of a dense input");
    input.next = in.below(INT32_MAX, "a next state", -1);
    const Blob* const first = blob(true);
    input.first = first ? first->begin : nullptr;
    input.first_bytes = first ? first->bytes : 0;
    of_inputs +=
        static_cast<std::int64_t>(input.axes.size() + input.levels.size()) + input.counts_longest;
    inputs.push_back(std::move(input));
  }
  expect(of_inputs == dims && reader.has_all_inputs(), "the sizes of inputs");
  for (std::int64_t left = in.count(); left > 0; --left) {
    Output output;
    static_cast<Described&>(output) = described(in, reader);
    for (const Memory& each : written)
      if (each.place == output.place) output.most = each.most;
    expect(output.most < 0 || output.width == reader.align(output.place), "an output");
    for (std::int64_t axes = in.below(Dims::kMost + 1, "so many axes"); axes > 0; --axes) {
      output.sizes.push_back(reader.size(in));
      output.known = output.known && reader.is_known(output.sizes.back());
      const std::int64_t size = in.next();
      output.axes.push_back({size, 0, INT64_MAX});
    }
    for (std::int64_t levels = in.below(Dims::kMost + 1, "so many levels"); levels > 0; --levels) {
      Level level{};
      level.input = in.below(static_cast<std::int64_t>(inputs.size()), "an input", -1);
      if (level.input >= 0) {
        const auto own = inputs[static_cast<std::size_t>(level.input)].levels.size();
        level.level = in.below(static_cast<std::int64_t>(own), "a level");
      } else {
        level.place = reader.place(in);
        level.count = reader.size(in);
        expect(reader.align(level.place) >= 8, "offsets");
      }
      output.levels.push_back(level);
    }
    outputs.push_back(std::move(output));
  }
  for (const Input& each : inputs)
    if (each.next >= 0) {
      expect(each.next < static_cast<std::int64_t>(outputs.size()) && each.levels.empty(),
             "a next state");
      const Output& after = outputs[static_cast<std::size_t>(each.next)];
      expect(after.width == each.width && after.dtype == each.dtype &&
                 after.axes.size() == each.axes.size() && after.levels.empty(),
             "a next state");
      std::int64_t bytes = each.width;
      for (const Axis& axis : each.axes)
        expect(axis.size >= 0 && !__builtin_mul_overflow(bytes, axis.size, &bytes),
               "the size of a state");
      expect(!each.first || each.first_bytes == bytes, "a first state");
    }
  for (std::int64_t left = in.count(); left > 0; --left) axes.push_back(reader.size(in));
  std::int64_t last = -1;
  for (std::int64_t left = in.count(5); left > 0; --left) {
    Cost cost{};
    cost.step = in.below(reader.steps(), "a step", last + 1);
    const Guarded& step = steps[static_cast<std::size_t>(last = cost.step)];
    expect(step.spec || (step.function && !std::strcmp(step.function->name, "quantized_lstm:")),
           "the cost of what is no layer");
    cost.rows = reader.size(in);
    cost.steps = reader.size(in);
    cost.runs = in.below(2049, "a cost");
    // Not bytes->size: equal weights are stored once.
    cost.work = in.below(64 * bytes->size, "a cost");
    share += cost.runs + cost.work / kWork + 1;
    costs.push_back(cost);
  }
  labels.resize(static_cast<std::size_t>(in.count()));
  for (std::string& each : labels) each = in.text();
  for (Guarded& each : steps)
    each.label = in.below(static_cast<std::int64_t>(labels.size()), "an operator");
  expect(in.is_at_end(), "more than there should be");
  plan = planned(this->words);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

std::int64_t onernn_checksum(const void* bytes, std::int64_t size) {
  // Four independent sums. A changed integer changes its sum, whatever follows.
  std::uint64_t sums[4] = {1, 2, 3, 4};
  const auto* const from = static_cast<const unsigned char*>(bytes);
  const auto add = [&sums](std::uint64_t word, int lane) {
    sums[lane] = (sums[lane] ^ word) * 0x9e3779b97f4a7c15u;
    sums[lane] ^= sums[lane] >> 32;
  };
  std::int64_t at = 0;
  for (; at + 32 <= size; at += 32)
    for (int lane = 0; lane < 4; ++lane) {
      std::uint64_t word;
      std::memcpy(&word, from + at + 8 * lane, 8);
      add(word, lane);
    }
  for (; at < size; ++at) add(from[at], 0);
  for (int lane = 1; lane < 4; ++lane) add(sums[lane], 0);
  return static_cast<std::int64_t>(sums[0]);
}
