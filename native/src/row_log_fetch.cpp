// The reading half of the log: first what still lies in staging buffers, then the rest from the files.
#include "row_log_fetch.h"

#include <cstring>
#include <string>

#include "row_log_format.h"
#include "row_log_segment.h"
#include "row_log_staging.h"
#include "sfctr/row_log.h"

namespace sfctr {
namespace {

constexpr std::size_t kCopiesAtOnce = 64;  // under a buffer's mutex, which the log's caller may wait for

std::string text_of(const RecordId& id) {
  return "key " + std::to_string(id.key) + " of native table " + std::to_string(id.table);
}

void require_id(const std::byte* record, const RecordId& id, const std::string& path, std::uint64_t offset) {
  const RecordId found = id_of(record);
  if (found == id) return;
  throw ChecksumError("found " + text_of(found) + " in place of " + text_of(id), path, offset);
}

}  // namespace

Fetch::Fetch(const LogLayout& layout, Readers& readers, ReadCounts& counts)
    : layout_(&layout), readers_(&readers), counts_(&counts) {}
Fetch::Fetch(Fetch&&) noexcept = default;
Fetch& Fetch::operator=(Fetch&&) noexcept = default;
Fetch::~Fetch() = default;

void Fetch::run(std::span<const RecordId> ids, std::byte* const* out) const {
  const std::vector<std::uint32_t> in_files = copy_staged(ids, out);
  counts_->records.fetch_add(size(), std::memory_order_relaxed);
  counts_->records_from_staging.fetch_add(size() - in_files.size(), std::memory_order_relaxed);
  read_files(in_files, ids, out);
}

// Gives back which items are to be read from files.
std::vector<std::uint32_t> Fetch::copy_staged(std::span<const RecordId> ids, std::byte* const* out) const {
  std::vector<std::uint32_t> in_files;
  in_files.reserve(items_.size());
  for (std::size_t i = 0; i < items_.size();) {
    StagingBuffer* const buffer = items_[i].staged;
    if (!buffer) {
      in_files.push_back(static_cast<std::uint32_t>(i++));
      continue;
    }
    std::lock_guard lock(buffer->mutex);
    for (const std::size_t end = i + kCopiesAtOnce; i < end && i < items_.size() && items_[i].staged == buffer; ++i) {
      if (buffer->use != items_[i].use) {  // written and used again since the fetch began
        in_files.push_back(static_cast<std::uint32_t>(i));
        continue;
      }
      const std::byte* const record = buffer->data + layout_->offset(items_[i].place - buffer->first);
      require_id(record, ids[i], items_[i].segment->file.path(), layout_->file_offset(items_[i].place));
      std::memcpy(out[i], record + LogLayout::kHeaderBytes, layout_->record_bytes);
    }
  }
  return in_files;
}

// Items that follow each other and lie in the same sectors share a request: rows evicted together are often wanted
// together.
void Fetch::read_files(std::span<const std::uint32_t> wanted, std::span<const RecordId> ids,
                       std::byte* const* out) const {
  std::vector<ReadRequest> requests;
  std::vector<std::size_t> begins;  // of each request's items in `wanted`, and an end
  requests.reserve(wanted.size());
  begins.reserve(wanted.size() + 1);
  std::size_t num_bytes = 0;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const Item& item = items_[wanted[k]];
    const std::uint64_t offset = layout_->file_offset(item.place);
    const std::uint64_t begin = offset / kSector * kSector, end = round_to_sectors(offset + layout_->stride);
    const ReadRequest* const same = requests.empty() ? nullptr : &requests.back();
    if (same && same->file == &item.segment->file && begin >= same->offset && end <= same->offset + same->num_bytes) {
      continue;
    }
    requests.push_back({&item.segment->file, begin, static_cast<std::uint32_t>(end - begin)});
    begins.push_back(k);
    num_bytes += end - begin;
  }
  begins.push_back(wanted.size());
  counts_->bytes.fetch_add(num_bytes, std::memory_order_relaxed);
  readers_->read(requests, [&](std::size_t r, const std::byte* data) {
    for (std::size_t k = begins[r]; k < begins[r + 1]; ++k) {
      const std::size_t i = wanted[k];
      const std::uint64_t offset = layout_->file_offset(items_[i].place);
      const std::byte* const record = data + (offset - requests[r].offset);
      const std::string& path = requests[r].file->path();
      if (!is_intact(record, *layout_)) throw ChecksumError("the checksum of the record does not match", path, offset);
      require_id(record, ids[i], path, offset);
      std::memcpy(out[i], record + LogLayout::kHeaderBytes, layout_->record_bytes);
    }
  });
}

}  // namespace sfctr
