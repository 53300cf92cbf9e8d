// A reader written from docs/format/segments.md, apart from the code that writes: what it recovers from sealed segments
// alone is what was appended, and it tells damage.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "row_log_rig.h"
#include "sfctr/xxh3.h"

namespace {

using namespace rig;

using Bytes = std::vector<char>;

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

template <class T>
T word(const Bytes& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::uint64_t hash(const Bytes& bytes, std::size_t at, std::size_t size) {
  return sfctr::xxh3_64(reinterpret_cast<const std::uint8_t*>(bytes.data()) + at, size);
}

bool says(const Bytes& bytes, std::size_t at, const char* magic) {
  return std::memcmp(bytes.data() + at, magic, 8) == 0;
}

struct Parsed {
  std::uint64_t sequence;
  std::vector<std::pair<RecordId, Row>> records;
};

// Nothing if the page says that the file is no sealed segment, or if a record is damaged.
std::optional<Parsed> parse(const Bytes& file) {
  if (file.size() < 8192 || file.size() % 4096 != 0) return {};
  if (!says(file, 0, "SFCTRSEG") || word<std::uint32_t>(file, 8) != 1) return {};
  if (hash(file, 0, 32) != word<std::uint64_t>(file, 32)) return {};
  const auto record_bytes = word<std::uint32_t>(file, 12), unit_bytes = word<std::uint32_t>(file, 16);
  const auto unit_records = word<std::uint32_t>(file, 20);
  const std::size_t footer = file.size() - 4096;
  if (!says(file, footer, "SFCTREND") || word<std::uint32_t>(file, footer + 8) != 1) return {};
  if (hash(file, footer, 24) != word<std::uint64_t>(file, footer + 24)) return {};
  Parsed parsed{word<std::uint64_t>(file, 24), {}};
  if (word<std::uint64_t>(file, footer + 16) != parsed.sequence) return {};
  const auto num_records = word<std::uint32_t>(file, footer + 12);
  for (std::uint32_t i = 0; i < num_records; ++i) {
    const std::size_t at =
        4096 + std::size_t{i / unit_records} * unit_bytes + i % unit_records * (16 + std::size_t{record_bytes});
    if (at + 16 + record_bytes > footer) return {};
    if (static_cast<std::uint32_t>(hash(file, at + 4, 12 + record_bytes)) != word<std::uint32_t>(file, at)) return {};
    Row row(record_bytes);
    std::memcpy(row.data(), file.data() + at + 16, record_bytes);
    parsed.records.push_back({{word<std::uint64_t>(file, at + 8), word<std::uint32_t>(file, at + 4)}, row});
  }
  return parsed;
}

// By sequence, the newest record of an id wins.
std::map<std::pair<std::uint32_t, std::uint64_t>, Row> recover(const TempDir& directory) {
  std::map<std::uint64_t, Parsed> segments;
  for (const std::string& path : directory.files()) {
    std::optional<Parsed> parsed = parse(read_file(path));
    CHECK(parsed.has_value());
    segments[parsed->sequence] = *std::move(parsed);
  }
  std::map<std::pair<std::uint32_t, std::uint64_t>, Row> rows;
  for (const auto& [sequence, segment] : segments) {
    for (const auto& [id, row] : segment.records) rows[{id.table, id.key}] = row;
  }
  return rows;
}

void sealed_segments_alone_give_the_newest_row_of_every_id() {
  for (const std::size_t record_bytes : {1, 256, 1384, 12288}) {
    TempDir directory;
    Twins twins(small_options(directory, record_bytes));
    const std::size_t count = 600'000 / (record_bytes + 500);
    for (std::uint64_t round = 0; round < 4; ++round) {
      twins.append(ids_from(round * count / 3, count, round % 2 == 0 ? 5 : 0));
      twins.compact(300'000);
    }
    twins.log.flush(true);
    const auto recovered = recover(directory);
    CHECK(recovered.size() == twins.num_rows());
    const std::vector<RecordId> ids = twins.all();
    const std::vector<Row> expected = twins.expected(ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      CHECK(recovered.at({ids[i].table, ids[i].key}) == expected[i]);
    }
  }
}

void a_segment_has_its_place_and_name_by_its_sequence() {
  TempDir directory;
  Twins twins(small_options(directory, 256));
  twins.append(ids_from(0, 20));
  twins.log.flush();
  const std::vector<std::string> files = directory.files();
  CHECK(files == std::vector<std::string>{directory.path() + "/segment-0000000000000001.rows"});
  const Bytes file = read_file(files[0]);
  CHECK(file.size() == 4 * 4096);  // header, fifteen rows, five rows, footer
  CHECK(word<std::uint64_t>(file, 24) == 1 && word<std::uint32_t>(file, 12 * 1024 + 12) == 20);
  CHECK(word<std::uint64_t>(file, 4096 + 272 + 8) == 1 && word<std::uint64_t>(file, 8192 + 8) == 15);
}

// Buffers are used over and over; nothing of their past may reach a file. Rows of 4082 bytes leave a gap behind seven,
// in the sector where the footer lies if six were the last.
void unused_bytes_are_zero() {
  for (const std::size_t record_bytes : {1384, 4082}) {
    TempDir directory;
    LogOptions options = small_options(directory, record_bytes);
    options.staging_bytes = 512 << 10;  // several units a buffer
    Twins twins(options);
    for (const std::size_t count : {70, 3, 6, 6, 6, 6, 200, 50, 1}) {
      twins.append(ids_from(0, count));
      twins.log.flush();
    }
    for (const std::string& path : directory.files()) {
      const Bytes file = read_file(path);
      const auto unit_bytes = word<std::uint32_t>(file, 16), unit_records = word<std::uint32_t>(file, 20);
      const std::size_t footer = file.size() - 4096, stride = 16 + record_bytes;
      Bytes unused = file;
      std::memset(unused.data(), 0, 40);
      std::memset(unused.data() + footer, 0, 32);
      for (std::uint32_t i = 0; i < word<std::uint32_t>(file, footer + 12); ++i) {
        const std::size_t at = 4096 + std::size_t{i / unit_records} * unit_bytes + i % unit_records * stride;
        std::memset(unused.data() + at, 0, stride);
      }
      CHECK(std::count(unused.begin(), unused.end(), 0) == static_cast<std::ptrdiff_t>(unused.size()));
    }
  }
}

void a_reader_tells_unsealed_and_damaged_segments() {
  TempDir directory;
  Twins twins(small_options(directory, 256));
  twins.append(ids_from(0, 40));
  twins.log.flush();
  const Bytes good = read_file(directory.files().at(0));
  CHECK(parse(good)->records.size() == 40);
  Bytes unsealed(good.begin(), good.end() - 4096);
  CHECK(!parse(unsealed));
  for (const std::size_t at : {0UL, 9UL, 13UL, 33UL, 4096UL, 4100UL, 4200UL, 9000UL, good.size() - 4096 + 13}) {
    Bytes damaged = good;
    damaged[at] ^= 1;
    CHECK(!parse(damaged));
  }
}

}  // namespace

int main() {
  alarm(240);  // a test that waits for ever ends here
  sealed_segments_alone_give_the_newest_row_of_every_id();
  a_segment_has_its_place_and_name_by_its_sequence();
  unused_bytes_are_zero();
  a_reader_tells_unsealed_and_damaged_segments();
}
