// Texts to keys and numbers, crosses of keys, and gathers of rows: the loops that a reader cannot leave to Python.
// Arrays are checked here (lengths, bounds), so that the core may rely on what its headers require.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "sfctr/cross.h"
#include "sfctr/gather.h"
#include "sfctr/records.h"
#include "sfctr/spans.h"
#include "sfctr/xxh3.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using arrays::span;

template <class T>
using Array = arrays::Vector<T>;
using Rows = nb::ndarray<nb::ro, nb::numpy, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<nb::numpy, nb::c_contig, nb::device::cpu>;
using Records = arrays::Matrix<const std::uint8_t>;
using OutRecords = arrays::Matrix<std::uint8_t>;
using Bytes = Array<const std::uint8_t>;
using Offsets = Array<const std::int64_t>;
using Indices = Array<const std::uint32_t>;
using GilFree = nb::call_guard<nb::gil_scoped_release>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class O>
sfctr::Spans<O> spans(const Bytes& data, const Array<const O>& starts, const Array<const O>& ends) {
  require(starts.shape(0) == ends.shape(0), "starts and ends differ in length");
  const auto size = static_cast<std::int64_t>(data.shape(0));
  bool inside = true;
  for (std::size_t i = 0; i < starts.shape(0); ++i) {
    const std::int64_t start = starts.data()[i], end = ends.data()[i];
    inside &= start >= 0 && start <= end && end <= size;
  }
  require(inside, "a span lies outside of the data");
  return {data.data(), span(starts), span(ends)};
}

// A function over spans that fills `out`, bound for both offset types.
template <class O, class Out, auto function>
void bind_fill(nb::module_& m, const char* name, const char* doc) {
  m.def(
      name,
      [](const Bytes& data, const Array<const O>& starts, const Array<const O>& ends, const Array<Out>& out) {
        require(out.shape(0) == starts.shape(0), "out is not as long as the spans");
        return function(spans(data, starts, ends), span(out));
      },
      "data"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "out"_a.noconvert(), GilFree(), doc);
}

std::string_view text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

template <class O>
void bind_spans(nb::module_& m) {
  bind_fill<O, std::uint64_t, sfctr::hash_spans<O>>(
      m, "hash_spans", "XXH3-64 of every span into out. Returns the first span that is not UTF-8, or -1.");
  bind_fill<O, std::int64_t, sfctr::parse_int64s<O>>(
      m, "parse_int64s", "Canonical decimal integers (empty: 0). Returns the first span that is none, or -1.");
  bind_fill<O, std::uint64_t, sfctr::parse_uint64s<O>>(
      m, "parse_uint64s", "Canonical decimal integers (empty: 0). Returns the first span that is none, or -1.");
  bind_fill<O, double, sfctr::parse_doubles<O>>(
      m, "parse_doubles", "Decimal numbers (empty: NaN). Returns the first span that is none, or -1.");
  bind_fill<O, std::uint64_t, sfctr::overlay_integers<O>>(
      m, "overlay_integers", "Writes the bits of every canonical integer over its entry of out.");
  m.def(
      "mark_null_spans",
      [](const Bytes& data, const Array<const O>& starts, const Array<const O>& ends,
         const std::vector<nb::bytes>& nulls, const Array<std::uint8_t>& out) {
        require(out.shape(0) == starts.shape(0), "out is not as long as the spans");
        std::vector<std::string_view> texts;
        for (const nb::bytes& text : nulls) texts.push_back(text_of(text));
        nb::gil_scoped_release free;
        sfctr::mark_null_spans(spans(data, starts, ends), {texts}, span(out));
      },
      "data"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "nulls"_a, "out"_a.noconvert(),
      "out[i] = 1 where span i is empty or one of nulls, else 0.");
  m.def(
      "count_tokens",
      [](const Bytes& data, const Array<const O>& starts, const Array<const O>& ends, const nb::bytes& separator,
         const Array<std::int64_t>& out_offsets) {
        require(separator.size() > 0, "the separator is empty");
        require(out_offsets.shape(0) == starts.shape(0) + 1, "out_offsets is not one longer than the spans");
        const std::string_view text = text_of(separator);
        nb::gil_scoped_release free;
        sfctr::count_tokens(spans(data, starts, ends), text, span(out_offsets));
      },
      "data"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "separator"_a, "out_offsets"_a.noconvert(),
      "Offsets of each span's tokens; an empty span has none.");
  m.def(
      "find_tokens",
      [](const Bytes& data, const Array<const O>& starts, const Array<const O>& ends, const nb::bytes& separator,
         const Array<std::int64_t>& out_starts, const Array<std::int64_t>& out_ends) {
        require(separator.size() > 0, "the separator is empty");
        const std::string_view text = text_of(separator);
        nb::gil_scoped_release free;
        const auto texts = spans(data, starts, ends);
        std::vector<std::int64_t> offsets(texts.size() + 1);
        sfctr::count_tokens(texts, text, std::span<std::int64_t>(offsets));
        const auto total = static_cast<std::size_t>(offsets.back());
        require(out_starts.shape(0) == total && out_ends.shape(0) == total, "outputs are not as long as the tokens");
        sfctr::find_tokens(texts, text, span(out_starts), span(out_ends));
      },
      "data"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "separator"_a, "out_starts"_a.noconvert(),
      "out_ends"_a.noconvert(), "Start and end in data of every token that count_tokens counts.");
  m.def(
      "find_last",
      [](const Bytes& data, const Array<const O>& starts, const Array<const O>& ends, const nb::bytes& separator,
         const Array<std::int64_t>& out) {
        require(out.shape(0) == starts.shape(0), "out is not as long as the spans");
        const std::string_view text = text_of(separator);
        nb::gil_scoped_release free;
        sfctr::find_last(spans(data, starts, ends), text, span(out));
      },
      "data"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(), "separator"_a, "out"_a.noconvert(),
      "Position in data of the last separator inside each span, or -1.");
}

std::size_t row_bytes(const Rows& rows) {
  std::size_t bytes = rows.itemsize();
  for (std::size_t axis = 1; axis < rows.ndim(); ++axis) bytes *= rows.shape(axis);
  return bytes;
}

sfctr::Picks picks_of(const Indices& pieces, const Indices& rows, const std::vector<std::size_t>& lengths) {
  require(pieces.shape(0) == rows.shape(0), "pieces and rows differ in length");
  bool inside = true;
  for (std::size_t i = 0; i < pieces.shape(0); ++i) {
    const std::uint32_t piece = pieces.data()[i];
    inside &= piece < lengths.size() && rows.data()[i] < lengths[piece];
  }
  require(inside, "a picked row lies outside of its piece");
  return {span(pieces), span(rows)};
}

std::vector<sfctr::Field> fields_of(const std::vector<std::size_t>& offsets, const std::vector<std::size_t>& widths,
                                    std::size_t record_bytes) {
  std::vector<sfctr::Field> fields;
  for (std::size_t f = 0; f < offsets.size(); ++f) {
    require(offsets[f] + widths[f] <= record_bytes, "a field lies outside of the record");
    fields.push_back({offsets[f], widths[f]});
  }
  return fields;
}

void pack_records(const std::vector<Rows>& columns, const std::vector<std::size_t>& offsets,
                  const OutRecords& records) {
  require(columns.size() == offsets.size(), "columns and offsets differ in length");
  std::vector<const std::byte*> starts;
  std::vector<std::size_t> widths;
  for (const Rows& column : columns) {
    require(column.ndim() > 0 && column.shape(0) == records.shape(0), "a column is not as long as the records");
    starts.push_back(static_cast<const std::byte*>(column.data()));
    widths.push_back(row_bytes(column));
  }
  const auto fields = fields_of(offsets, widths, records.shape(1));
  nb::gil_scoped_release free;
  sfctr::pack_records({starts}, {fields}, records.shape(1), records.shape(0),
                      reinterpret_cast<std::byte*>(records.data()));
}

void gather_records(const std::vector<Records>& pieces, const Indices& which, const Indices& rows,
                    const std::vector<std::size_t>& offsets, const std::vector<OutRows>& columns) {
  require(columns.size() == offsets.size() && !pieces.empty(),
          "columns and offsets differ in length, or no piece is given");
  const std::size_t width = pieces[0].shape(1);
  std::vector<const std::byte*> starts;
  std::vector<std::size_t> lengths, widths;
  for (const Records& piece : pieces) {
    require(piece.shape(1) == width, "the pieces' records differ in width");
    starts.push_back(reinterpret_cast<const std::byte*>(piece.data()));
    lengths.push_back(piece.shape(0));
  }
  std::vector<std::byte*> outs;
  for (const OutRows& column : columns) {
    require(column.ndim() > 0 && column.shape(0) == which.shape(0), "a column is not as long as the picks");
    outs.push_back(static_cast<std::byte*>(column.data()));
    widths.push_back(row_bytes(Rows(column)));
  }
  const auto fields = fields_of(offsets, widths, width);
  nb::gil_scoped_release free;
  sfctr::gather_records({starts}, width, picks_of(which, rows, lengths), {fields}, {outs});
}

// Start of each piece's offsets, and in `lengths` how many rows each has.
std::vector<const std::int64_t*> offset_starts(const std::vector<Offsets>& offsets, std::vector<std::size_t>& lengths) {
  std::vector<const std::int64_t*> starts;
  for (const Offsets& piece : offsets) {
    require(piece.shape(0) > 0, "offsets of a piece are empty");
    starts.push_back(piece.data());
    lengths.push_back(piece.shape(0) - 1);
  }
  return starts;
}

void gather_offsets(const std::vector<Offsets>& offsets, const Indices& pieces, const Indices& rows,
                    const Array<std::int64_t>& out_offsets) {
  std::vector<std::size_t> lengths;
  const auto starts = offset_starts(offsets, lengths);
  require(out_offsets.shape(0) == pieces.shape(0) + 1, "out_offsets is not one longer than the picks");
  nb::gil_scoped_release free;
  sfctr::gather_offsets({starts}, picks_of(pieces, rows, lengths), span(out_offsets));
}

void gather_items(const std::vector<Rows>& items, const std::vector<Offsets>& offsets, const Indices& pieces,
                  const Indices& rows, const Offsets& out_offsets, const OutRows& out) {
  std::vector<std::size_t> lengths;
  const auto starts = offset_starts(offsets, lengths);
  require(items.size() == offsets.size(), "items and offsets differ in length");
  require(out_offsets.shape(0) == pieces.shape(0) + 1, "out_offsets is not one longer than the picks");
  std::vector<const std::byte*> data;
  for (std::size_t piece = 0; piece < items.size(); ++piece) {
    require(items[piece].itemsize() == out.itemsize(), "items and out differ in width");
    require(starts[piece][0] >= 0 && starts[piece][lengths[piece]] <= static_cast<std::int64_t>(items[piece].size()),
            "offsets exceed their items");
    data.push_back(static_cast<const std::byte*>(items[piece].data()));
  }
  require(out_offsets.data()[pieces.shape(0)] == static_cast<std::int64_t>(out.size()),
          "out is not as long as the items");
  nb::gil_scoped_release free;
  sfctr::gather_items({data}, {starts}, out.itemsize(), picks_of(pieces, rows, lengths), span(out_offsets),
                      static_cast<std::byte*>(out.data()));
}

void cross_keys(const std::vector<Array<const std::uint64_t>>& keys, const std::vector<std::optional<Bytes>>& nulls,
                const Array<std::uint64_t>& out) {
  require(keys.size() == nulls.size(), "keys and nulls differ in length");
  std::vector<const std::uint64_t*> key_starts;
  std::vector<const std::uint8_t*> null_starts;
  for (std::size_t part = 0; part < keys.size(); ++part) {
    require(keys[part].shape(0) == out.shape(0), "keys are not as long as out");
    require(!nulls[part] || nulls[part]->shape(0) == out.shape(0), "nulls are not as long as out");
    key_starts.push_back(keys[part].data());
    null_starts.push_back(nulls[part] ? nulls[part]->data() : nullptr);
  }
  nb::gil_scoped_release free;
  sfctr::cross_keys({key_starts}, {null_starts}, span(out));
}

void bind_gathers(nb::module_& m) {
  m.def("pack_records", &pack_records, "columns"_a.noconvert(), "offsets"_a, "records"_a.noconvert(),
        "Row i of every column into records[i], each at its offset.");
  m.def("gather_records", &gather_records, "pieces"_a.noconvert(), "which"_a.noconvert(), "rows"_a.noconvert(),
        "offsets"_a, "columns"_a.noconvert(), "Row i of every column from record rows[i] of pieces[which[i]].");
  m.def("gather_offsets", &gather_offsets, "offsets"_a.noconvert(), "pieces"_a.noconvert(), "rows"_a.noconvert(),
        "out_offsets"_a.noconvert(), "Offsets of the picked ragged rows.");
  m.def("gather_items", &gather_items, "items"_a.noconvert(), "offsets"_a.noconvert(), "pieces"_a.noconvert(),
        "rows"_a.noconvert(), "out_offsets"_a.noconvert(), "out"_a.noconvert(),
        "Items of the picked ragged rows, placed by gather_offsets' result.");
}

}  // namespace

void bind_hash(nb::module_& m) {
  m.def(
      "xxh3_64",
      [](const nb::bytes& data) {
        return sfctr::xxh3_64(reinterpret_cast<const std::uint8_t*>(data.c_str()), data.size());
      },
      "data"_a, "XXH3-64 of data with seed 0.");
  bind_spans<std::int32_t>(m);
  bind_spans<std::int64_t>(m);
  m.def(
      "widen_floats",
      [](const Array<const float>& values, const Array<double>& out) {
        require(out.shape(0) == values.shape(0), "out is not as long as values");
        sfctr::widen_floats(span(values), span(out));
      },
      "values"_a.noconvert(), "out"_a.noconvert(), GilFree(), "Each float as the double its shortest decimal names.");
  m.def("cross_keys", &cross_keys, "keys"_a.noconvert(), "nulls"_a.noconvert(), "out"_a.noconvert(),
        "Key of each row's combination of keys; nulls[part] (None: none) marks missing parts with 1.");
  bind_gathers(m);
}
