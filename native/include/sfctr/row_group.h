// The rows of all tables of one group (equal dim, element, optimizer kinds and layout) in memory, and what a step does
// with them.
//
//   locate -> forward (any number) -> backward (any number) -> update      one working set, one thread at a time
//
// A record is float32 throughout, without padding:
//   vector [dim] | first-order weight [1, if linear] | state of the vector's rule | state of the weight's rule
// but a vector in bf16 takes dim halves of such words, in order of address; what an odd dim leaves over is zero. It is
// read exactly, updated as float32, and rounded stochastically by the table's seed, key, step and column.
//
// Different working sets may be located and read by several threads at once. update, import_rows and reserve wait for
// those calls to end and keep others out; a working set located before one of them is refused by update, because it may
// take a row that has been added since for a new one.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "sfctr/index.h"
#include "sfctr/kernels.h"
#include "sfctr/keys_by_slot.h"
#include "sfctr/optimizer.h"
#include "sfctr/slab.h"
#include "sfctr/working_set.h"

namespace sfctr {

struct KeyBlock;

// How the rows of one table begin, and whether they change.
struct TableInit {
  std::uint64_t seed = 0;       // of first values, and of the rounding of bf16
  std::uint64_t null_seed = 0;  // of the row of a missing value
  bool normal = true;           // a is the mean, b the standard deviation; else uniform in [a, b)
  double a = 0, b = 0;
  float state0 = 0;         // first value of Adagrad's accumulators
  float linear_state0 = 0;  // the same for the first-order weight
  bool frozen = false;      // rows are neither trained nor added
};

// Where the parts of a record lie, in words the size of a float.
struct Layout {
  std::size_t dim, linear;  // linear: 0 or 1 floats
  std::size_t vector_state, linear_state;
  Element element;
  std::size_t vector_words;  // what dim elements take

  std::size_t linear_offset() const { return vector_words; }
  std::size_t vector_state_offset() const { return vector_words + linear; }
  std::size_t linear_state_offset() const { return vector_words + linear + vector_state; }
  std::size_t num_floats() const { return vector_words + linear + vector_state + linear_state; }
};

class RowGroup {
 public:
  // REQUIRES: dim 0 goes with linear, and a vector rule of kNone with dim 0; dim is at most kMaxDim. Else throws
  // std::invalid_argument.
  RowGroup(std::size_t dim, Rule vector_rule, Rule linear_rule, bool linear, std::vector<TableInit> tables,
           Element element = Element::kFloat32);

  const Layout& layout() const { return layout_; }
  std::size_t num_tables() const { return inits_.size(); }

  // Finds the record of every key. In training a key without a row gets its first values in the working set alone;
  // otherwise, and always in frozen tables, it reads as zeros. Whatever was located or merged before is forgotten.
  // Throws std::invalid_argument if the working set has another number of tables, std::bad_alloc.
  void locate(WorkingSet& ws, bool train) const;

  // Keys that update would give a row if backward reached them all.
  std::size_t num_new(const WorkingSet& ws) const;

  // [F]: positions of each feature whose key has no row.
  std::vector<std::int64_t> unseen(const WorkingSet& ws) const;

  // Pools rows [begin, end) of the batch. out: the features in order, each (end - begin) * vectors_a_row * dim floats.
  // linear_out: [F, end - begin], or empty. Throws std::invalid_argument on other sizes.
  void forward(const WorkingSet& ws, std::size_t begin, std::size_t end, std::span<float> out,
               std::span<float> linear_out) const;
  std::size_t forward_floats(const WorkingSet& ws, std::size_t num_rows) const;

  // Adds the gradients of rows [begin, end) to those of their keys. grads[f] is shaped as forward's part of feature f,
  // or empty: that feature is not reached; likewise linear_grads[f], [end - begin], or no entry at all. The
  // contributions to a key are taken in the order feature, row, position. Features of frozen tables count for nothing.
  void backward(WorkingSet& ws, std::size_t begin, std::size_t end, std::span<const std::span<const float>> grads,
                std::span<const std::span<const float>> linear_grads) const;

  // Throws std::runtime_error unless backward has been called since the working set was located here.
  void require_gradients(const WorkingSet& ws) const;

  // Of the gradients of all keys reached, vectors and first-order weights: rows in order within blocks of 1024 keys,
  // blocks in order.
  double grad_norm_squared(const WorkingSet& ws) const;

  // Gives every key that was reached its row, multiplies its gradient by scale, and applies the optimizers. hyper holds
  // one entry a table. step counts committed steps from 1. Ends the working set's use until it is located again.
  // Returns the number of rows added. Throws std::runtime_error if rows were added since it was located;
  // std::length_error or std::bad_alloc where a row finds no room: some rows may then have been added, none trained.
  std::size_t update(WorkingSet& ws, std::uint64_t step, float scale, std::span<const Hyper> hyper,
                     std::span<const Hyper> linear_hyper);

  // native_table: 2t of table t, 2t + 1 of its missing value. All throw std::out_of_range for another.
  std::uint64_t num_rows(std::size_t native_table) const;
  // found[i]: whether keys[i] has a row, which is then copied to records[i].
  void find(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<float> records,
            std::span<std::uint8_t> found) const;
  // records[i] becomes what a row of keys[i] begins as; nothing is added.
  void initial_records(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<float> records) const;
  // Rows of slots [start, start + keys.size()), in slot order, fewer where slots are free or at the end. Returns their
  // number.
  std::size_t export_rows(std::size_t native_table, std::uint64_t start, std::span<std::uint64_t> keys,
                          std::span<float> records) const;
  std::uint32_t slot_end(std::size_t native_table) const;
  // Adds rows, or overwrites those there are.
  void import_rows(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<const float> records);
  void reserve(std::size_t native_table, std::uint64_t num_rows);

  // Of rows and indexes; O(tables).
  std::size_t memory_bytes() const;

 private:
  struct NativeTable {
    Index index;
    Slab slab;
  };

  const NativeTable& table(std::size_t native_table) const;
  NativeTable& table(std::size_t native_table) {
    return const_cast<NativeTable&>(std::as_const(*this).table(native_table));
  }
  float* record(const NativeTable& table, std::uint32_t slot) const {
    return reinterpret_cast<float*>(table.slab.at(slot));
  }
  std::uint64_t seed_of(std::size_t native_table) const {
    const TableInit& init = inits_[native_table / 2];
    return native_table % 2 == 0 ? init.seed : init.null_seed;
  }
  void require_located(const WorkingSet& ws) const;
  void require_shape(std::size_t num_keys, std::size_t num_floats) const;
  std::size_t locate_block(WorkingSet& ws, const KeyBlock& block, bool train) const;
  void make_fresh(WorkingSet& ws, const KeyBlock& block, float* records) const;
  void initialize_rows(std::size_t native_table, std::span<const std::uint64_t> keys, float* const* records) const;
  std::size_t add_reached(WorkingSet& ws, std::size_t native_table);
  float* add_row(NativeTable& table, std::uint64_t key);
  void update_block(const WorkingSet& ws, const KeyBlock& block, UpdateArgs vector, UpdateArgs linear) const;

  Layout layout_;
  Rule vector_rule_, linear_rule_;
  std::vector<TableInit> inits_;
  std::vector<NativeTable> tables_;  // 2 * num_tables()
  std::vector<float> zeros_;         // what an absent key reads as
  std::uint64_t number_;             // different for every group of the process
  std::uint64_t version_ = 0;        // counts changes of the set of rows
  mutable std::shared_mutex mutex_;
  mutable std::mutex export_mutex_;  // taken after mutex_
  mutable KeysBySlot keys_by_slot_;  // guarded by export_mutex_
};

}  // namespace sfctr
