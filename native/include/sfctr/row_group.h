// The rows of all tables of one group (equal dim, element, optimizer kinds and layout) in RAM and on disk, and what a
// step does with them.
//
//   (announce) -> plan -> fetch -> forward (any number) -> backward (any number) -> update | discard
//   (announce) -> plan -> fetch -> plan_lines -> ... -> lines_ready -> end_step | discard      trained on a device
//   adopt -> forward (any number) -> backward (any number) -> discard                         rows of other processes
//
// A record is float32 throughout, without padding:
//   vector [dim] | first-order weight [1, if linear] | state of the vector's rule | state of the weight's rule
// but a vector in bf16 takes dim halves of such words, in order of address; what an odd dim leaves over is zero. It is
// read exactly, updated as float32, and rounded stochastically by the table's seed, key, step and column.
//
// Batches are planned in the order in which they will train, some ahead of their turn. plan() gives every unique key of
// a batch a frame in RAM, where its record will be when fetch() returns and stays until update() or discard(): frames
// of batches in flight are pinned. A row that leaves RAM is appended to the log on disk (row_log.h).
//
// The hazards, and why no number depends on tiers, window or threads:
//  1. A row in a batch in flight may still be written. It is pinned, and a pinned frame is never a victim.
//  2. A row that is wanted again must be read after it was written down. Appending it to the log gives it its location
//     at once, and from then on the log reads back what was appended, written to the file or not.
//  3. A row shared by batches in flight has one frame. They train one after the other, so each reads what the one
//     before it wrote; fetches run in the order of plans, so the record is there for all of them. The thread that
//     fetches may be another than the one that plans, and work beside it.
//  4. A key without a row gets a frame with its first values when the first batch with it is planned, provisionally: it
//     becomes a row when update() has reached it, and is dropped when its last batch in flight ends without.
//  5. A record leaves its old location on disk for good only when it has been read; until then the log keeps it.
//  6. A row on a device pins its frame: it leaves the device, and is written down, before it leaves RAM. Whoever reads
//     rows in RAM has dirty lines lowered first. What a batch brings into lines it fills after what leaves them was
//     lowered, and only then are they its rows'.
//
// A group of copies holds rows whose owner is another process: none of them need be there, so what must leave RAM is
// forgotten. A key without a copy is planned as one without a row, and gets its record, by fill(), when its batch is
// next to train: not before, because the steps before it change the row where it is held.
//
// Where a table has a membership rule (membership.h), plan() still gives every key a frame, and settle() says which of
// them have a row, which get one and which are refused: in the order of training, after the step before has ended.
//  7. Such groups pin whatever a batch found. A row that is removed while batches in flight hold its frame becomes
//     provisional again, with what the frame holds undefined until settle() of one of them gives it its first values.
//
// What a snapshot adds to this is said at the head of snapshot.cpp.
//
// One thread plans, one fetches, one trains (forward to update) and reads (view, find, export); any of them may be the
// same. mutex_ guards index, frames and log; records in frames belong to whoever the pins say.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfctr/budget.h"
#include "sfctr/counters.h"
#include "sfctr/device_lines.h"
#include "sfctr/frames.h"
#include "sfctr/group_options.h"
#include "sfctr/index.h"
#include "sfctr/kernels.h"
#include "sfctr/membership.h"
#include "sfctr/next_uses.h"
#include "sfctr/optimizer.h"
#include "sfctr/place.h"
#include "sfctr/row_faults.h"
#include "sfctr/row_log.h"
#include "sfctr/snapshot.h"
#include "sfctr/working_set.h"

namespace sfctr {

struct KeyBlock;
struct FeatureGradient;

// The gradient of a feature for some rows of the batch: num_floats in all, which follow each other, or else rows of
// num_floats / num_rows that begin `stride` floats apart. Empty: the feature is not reached.
struct GradientRows {
  GradientRows() = default;
  GradientRows(std::span<const float> all) : data(all.data()), num_floats(all.size()) {}
  GradientRows(const float* first, std::size_t rows, std::size_t columns, std::size_t apart)
      : data(first), num_floats(rows * columns), num_rows(rows), stride(apart) {}

  const float* data = nullptr;
  std::size_t num_floats = 0;
  std::size_t num_rows = 0;  // 0: all floats follow each other
  std::size_t stride = 0;
};

class RowGroup {
 public:
  // REQUIRES: dim 0 goes with linear, and a vector rule of kNone with dim 0; dim is at most kMaxDim; tiers.disk can be
  // met (RowLog::require_valid). Else throws std::invalid_argument. The disk is first touched when rows leave RAM.
  RowGroup(std::size_t dim, Rule vector_rule, Rule linear_rule, bool linear, std::vector<TableInit> tables,
           GroupTiers tiers = {}, Element element = Element::kFloat32);
  ~RowGroup();
  RowGroup(const RowGroup&) = delete;

  const Layout& layout() const { return layout_; }
  std::size_t num_tables() const { return inits_.size(); }
  bool has_membership() const { return members_ != nullptr; }  // whether any table has a rule
  // Whether rows have begun to leave RAM. Any thread may ask; it waits for nobody.
  bool is_spilling() const { return evicts_; }
  // Whether the last plan() was put off only until frames could go for more keys.
  bool is_shrinking() const { return is_shrinking_; }

  // The batch will be planned after those announced and planned before it: eviction spares its rows where it can. It
  // must then be planned, or forgotten by discard(), in its turn. Does nothing until rows begin to leave RAM.
  void announce(WorkingSet& ws);

  // Gives every key of the batch its place in RAM. Returns false, with nothing changed, where batches in flight hold
  // frames that it needs: try again when one of them has ended. Throws std::invalid_argument if the working set has
  // another number of tables; RamFull, IndexOutgrown (budget.h), DiskError, LocationsExhaustedError (row_log.h),
  // std::length_error (2^30 frames) and std::bad_alloc leave the batch unplanned and every row as it was. A DiskError
  // may be that of the step before, whose rows stayed in RAM. Damage on disk is no matter of plan(), only of whoever
  // reads the damaged row.
  bool plan(WorkingSet& ws);

  // Reads what the plan needs from disk. Throws DiskError or ChecksumError: the batch has then ended as by discard(),
  // and the rows stay on disk; std::runtime_error, ending it likewise, where it shares rows with a batch that ended
  // before it had read them. REQUIRES: planned, in the order of plans.
  void fetch(WorkingSet& ws);

  // Finds the records of a batch for reading alone: nothing is added, moved or counted. A key without a row reads as
  // zeros. What was located or merged before is forgotten. Good until rows change: by a committed step, remove_rows(),
  // import_rows() or restore_clock(); whoever uses it then throws std::runtime_error. Throws as fetch().
  void view(WorkingSet& ws);

  // train: plan and fetch, where nothing else is in flight; else view.
  void locate(WorkingSet& ws, bool train);

  // Decides which of the batch's keys have a row, which are given one and which are refused, as the steps committed so
  // far have it. `time` is the batch's greatest event time, or EventClock::kNoTime. Does nothing where no table has a
  // membership rule. REQUIRES: fetched, the batch before it has ended, and none that is planned later is settled.
  // Throws std::runtime_error where the batch is not fetched.
  void settle(WorkingSet& ws, std::int64_t time);

  // [F]: positions of each feature whose key has no row. REQUIRES: located, and settled if it is to be trained, else
  // throws std::runtime_error; so do the next four.
  std::vector<std::int64_t> unseen(const WorkingSet& ws) const;

  // Pools rows [begin, end) of the batch. out: the features in order, each (end - begin) * vectors_a_row * dim floats.
  // linear_out: [F, end - begin], or empty. Throws std::invalid_argument on other sizes.
  void forward(const WorkingSet& ws, std::size_t begin, std::size_t end, std::span<float> out,
               std::span<float> linear_out) const;
  std::size_t forward_floats(const WorkingSet& ws, std::size_t num_rows) const;

  // Adds the gradients of rows [begin, end) to those of their keys. grads[f] is shaped as forward's part of feature f,
  // or empty: that feature is not reached; likewise linear_grads[f], [end - begin], or no entry at all. The
  // contributions to a key are taken in the order feature, row, position. Features of frozen tables count for nothing;
  // what comes to a refused key goes to its table's rare row, or nowhere.
  void backward(WorkingSet& ws, std::size_t begin, std::size_t end, std::span<const GradientRows> grads,
                std::span<const std::span<const float>> linear_grads) const;

  // Throws std::runtime_error unless backward has been called since the working set was located here.
  void require_gradients(const WorkingSet& ws) const;

  // Of the gradients of all keys reached, vectors and first-order weights: rows in order within blocks of 1024 keys,
  // blocks in order.
  double grad_norm_squared(const WorkingSet& ws) const;

  // Multiplies the gradient of every key that was reached by scale and applies the optimizers; those without a row have
  // one from now on. hyper holds one entry a table. step counts committed steps from 1. Ends the working set's use
  // until it is located again. Throws std::invalid_argument or std::runtime_error before anything is changed.
  void update(WorkingSet& ws, std::uint64_t step, float scale, std::span<const Hyper> hyper,
              std::span<const Hyper> linear_hyper);

  // Ends the use of a batch that was announced or located, without training it. No row changes.
  void discard(WorkingSet& ws);

  // Rows that travel (travel.cpp). Where they are held, a working set of sources is planned, fetched and settled, gives
  // weights() and kinds(), takes add_gradients() from each source in turn and is updated; or it is viewed, and read.
  // Where they are looked up, a batch adopts them.

  // Words of a row's weights, as a record begins: its vector and its first-order weight.
  std::size_t wire_words() const { return layout_.vector_words + layout_.linear; }
  // [U, wire_words]: the weights of all unique keys as they are in RAM now; zeros of a key that is absent or refused.
  // REQUIRES: located, and settled if it is to be trained, else throws std::runtime_error; so do the next two.
  void weights(const WorkingSet& ws, std::span<float> out) const;
  // [n, wire_words]: the same of unique keys `ids`. Throws std::invalid_argument where one is none.
  void weights(const WorkingSet& ws, std::span<const std::int32_t> ids, std::span<float> out) const;
  // [U], a RecordKind; as long as the working set stays located.
  std::span<const std::uint8_t> kinds(const WorkingSet& ws) const;
  // A batch's rows are these, from elsewhere: from now on and until discard() it is located, fetched and settled, for
  // training or for reading; only that plan(), settle(), update() and what writes records refuse it. Nothing is pinned
  // and no row of this group is looked at. weights [U, wire_words] must stay where they are until then. kinds [U], or
  // empty where every key has a row. Throws std::invalid_argument where these do not fit the working set.
  void adopt(WorkingSet& ws, std::span<const float> weights, std::span<const std::uint8_t> kinds, bool train);
  // Adds gradients to those of unique keys `ids`, each there once: to the first that comes to a key nothing is added.
  // vectors [n, dim] and linear [n] (empty without such weights) count where `reached` [n] has their bit. What comes to
  // a frozen table is dropped; what comes to a refused key is as well, but for that it was reached. Throws
  // std::runtime_error unless the working set may be updated, and std::invalid_argument; nothing is then changed.
  void add_gradients(WorkingSet& ws, std::span<const std::int32_t> ids, std::span<const float> vectors,
                     std::span<const float> linear, std::span<const std::uint8_t> reached) const;

  // Copies of rows (copies.cpp), of a group that forgets; another throws std::logic_error.

  // Unique keys of a planned batch that have no copy now. REQUIRES: fetched, and every batch before it has ended; all
  // that was missing must be filled before weights(), add_gradients() or update(), else those throw std::runtime_error.
  std::vector<std::int64_t> missing(WorkingSet& ws);
  // Their records [m] are copies of rows from now on. Throws std::invalid_argument for another key, or other sizes.
  void fill(WorkingSet& ws, std::span<const std::int64_t> ids, std::span<const float> records);
  // There are no copies any more. Throws std::runtime_error while a batch is in flight.
  void forget_all();

  // On a device (lines.cpp). The records there are the caller's: here it is decided which line holds which row. One
  // caller at a time may plan and lower.

  // Rows may be in so many lines from now on; they are then trained there alone, and update() is refused. Where rows
  // leave RAM, only half of its frames may have lines. REQUIRES: no batch is in flight, no table has a membership rule
  // and vectors are float32; called once. Else throws std::runtime_error.
  void keep_lines(std::size_t num_lines);
  std::size_t num_lines() const { return lines_ ? lines_->num_lines() : 0; }
  std::size_t lines_bound();

  // Chooses a line for every key of the batch, pinned until end_step() or discard(); ws.on_device says what must move.
  // The caller then puts the records of `leaving` lines into RAM with lower() and says lines_lowered(), and those of
  // `rising` keys (gather) into their lines and says lines_ready(). Keys in `spilled` have no line: no other batch is
  // ready on the device until this one has ended, and the caller must scatter() what it has trained of them before
  // end_step(). Returns false, with nothing changed, where batches in flight hold lines that it needs. Throws
  // std::bad_alloc with nothing changed. REQUIRES: fetched, in the order of plans; else throws std::runtime_error.
  bool plan_lines(WorkingSet& ws);
  void lines_lowered(WorkingSet& ws);
  void lines_ready(WorkingSet& ws);
  // Copies the records of these unique keys, as they are in RAM; or from `records` to RAM. REQUIRES: fetched; scatter:
  // no key is absent. Else std::invalid_argument or std::runtime_error.
  void gather(const WorkingSet& ws, std::span<const std::uint32_t> keys, std::span<float> records) const;
  void scatter(const WorkingSet& ws, std::span<const std::uint32_t> keys, std::span<const float> records);
  // Full lines whose record is newer than RAM's.
  std::vector<std::uint32_t> dirty_lines();
  // Puts the records of full lines into RAM; they are then clean.
  void lower(std::span<const std::uint32_t> lines, std::span<const float> records);
  // No row is on the device any more. Throws std::runtime_error where lines are dirty, or batches in flight there.
  void drop_lines();
  // Ends a batch that is ready on the device, as update() does: keys whose reached [U] is not 0 were trained.
  void end_step(WorkingSet& ws, std::uint64_t step, std::span<const std::uint8_t> reached);
  LineCounters line_counters();

  // native_table: 2t of table t, 2t + 1 of its missing value. All throw std::out_of_range for another.
  std::uint64_t num_rows(std::size_t native_table);
  // found[i]: whether keys[i] has a row, which is then copied to records[i].
  void find(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<float> records,
            std::span<std::uint8_t> found);
  // records[i] becomes what a row of keys[i] begins as; nothing is added.
  void initial_records(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<float> records) const;
  // Replaces keys and records by rows in the order of their keys' hashes (which nothing but the keys decides), from the
  // hash `from` on, at most `count`. Returns the hash to go on from, or nothing after the last row. Throws
  // std::invalid_argument where count is 0.
  std::optional<std::uint64_t> export_rows(std::size_t native_table, std::uint64_t from, std::size_t count,
                                           std::vector<std::uint64_t>& keys, std::vector<float>& records);
  // Adds rows, or overwrites those there are. last: the step that trained each last; empty: the last one committed.
  // Throws std::runtime_error while a batch is in flight, and what plan() does: some of the rows are then there, each
  // as it was or as it was to be.
  void import_rows(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<const float> records,
                   std::span<const std::uint32_t> last = {});
  // Keys of table t will be of these shards (hash.h), and few of others: a hint that changes what it costs to find a
  // row, and no row; see Index::expect. Throws std::out_of_range for another table, std::bad_alloc.
  void expect_shards(std::size_t t, const ShardSet& shards);
  // See Index::mean_probes; of keys that have a row or of those that wait, whichever is more.
  double mean_probes(std::size_t native_table);
  // Makes room in the index for so many rows in all. Import in the order of hashes needs it: an index that grows under
  // it has all its entries at one end. Throws std::bad_alloc.
  void reserve(std::size_t native_table, std::uint64_t num_rows);
  // The keys' rows, and counts that wait, are gone; each begins anew when it comes again. Returns how many had a row.
  // Throws std::runtime_error while a batch is between settle() and its end; or in flight at all, where no table has a
  // membership rule; or where rows are on a device.
  std::uint64_t remove_rows(std::size_t native_table, std::span<const std::uint64_t> keys);

  // Snapshots (snapshot.cpp): the rows as they are between two steps, taken by another thread while training goes on.

  // From now on the snapshot is the rows as they are now: all, or those trained, loaded or new since the one before
  // began. Costs a pass over a few bits a row, and where rows expire one over their keys. REQUIRES: no batch is between
  // settle() and its end, or in the midst of a step; none is under way; full, if needs_full(); no line is dirty. Else
  // throws std::runtime_error. Batches may be planned ahead.
  void begin_snapshot(bool full);
  // The next rows, of one native table, at most `count`: in the order of their keys' hashes, but for those that
  // training was about to change or remove. Nothing: all were given. Any thread, one at a time, beside everything else.
  // Throws DiskError or ChecksumError, and then each time: such a snapshot cannot be kept. Throws std::runtime_error
  // where none is under way, std::invalid_argument where count is 0.
  std::optional<SnapshotRows> take_snapshot(std::size_t count);
  // Keys by native table, sorted, whose rows went for good since the snapshot before this one began, those that came
  // back since included; empty when asked again. One that had to be full may leave some out.
  std::vector<std::vector<std::uint64_t>> take_tombstones();
  // kept: it lies where it will be found again. REQUIRES: one is under way, and no take_snapshot() runs; where it is
  // kept, all of it was given. Else throws std::runtime_error.
  void end_snapshot(bool kept);
  // Until a first snapshot was kept or mark_saved(); after one that was not kept; and where more keys went than are
  // worth being listed.
  bool needs_full();
  // What there is lies in a snapshot: nothing counts as changed. Throws std::runtime_error while one is under way.
  void mark_saved();

  // Deltas (changes.cpp): for one who follows the rows, and had all of them as they were when it last said so. It and
  // snapshots know nothing of each other. REQUIRES, of all: between two steps, no batch is between settle() and its
  // end, no line is dirty; else they throw std::runtime_error. Batches may be planned ahead.

  // The follower has the rows as they are now; what changes is noted from now on.
  void mark_sent();
  // Whether it must be sent all rows: it never had any, or more keys went than are worth being listed. What has expired
  // is let go, and counts as gone.
  bool needs_base();
  // As export_rows(), of the rows that were trained, loaded or new since it had all; records null: their keys alone.
  // Nothing counts as sent by that. Throws std::runtime_error where it must be sent all.
  std::optional<std::uint64_t> unsent_rows(std::size_t native_table, std::uint64_t from, std::size_t count,
                                           std::vector<std::uint64_t>& keys, std::vector<float>* records);
  // Keys, sorted, whose rows went since then and that have none now. Throws as unsent_rows().
  std::vector<std::uint64_t> unsent_gone(std::size_t native_table);
  // Keys whose rows it does not have as they are, and keys whose rows have gone that it still has: how a group that was
  // loaded anew goes on, after mark_sent().
  void mark_unsent(std::size_t native_table, std::span<const std::uint64_t> rows, std::span<const std::uint64_t> gone);

  // Of rows, indexes and all that goes with them, in RAM; O(shards of the indexes).
  std::size_t memory_bytes();
  GroupCounters counters();
  std::vector<RowCounters> table_counters();
  // Batches planned and not yet ended.
  std::size_t num_in_flight();
  LogCounters log_counters();

  // In how many equal ranges of hashes table t's rule of membership counts what is bounded, at most kNumShards: what
  // holds whole ranges decides as what holds all.
  std::size_t num_shares(std::size_t t);
  // What is kept of membership, of table t (throws std::out_of_range for another). All of it is zero and empty where no
  // table has a rule.
  struct Waiting {
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> counts, last;  // committed steps that reached the key, and the last of them
  };
  MembershipCounters membership(std::size_t t, std::uint64_t& num_waiting);
  Waiting waiting(std::size_t t);  // in the order of the keys' hashes
  // The step that trained each key's row last; 0 for one without. REQUIRES: out has room for keys.size().
  void last_trained(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<std::uint32_t> out);
  std::deque<EventClock::Point> clock();
  // Sets what these two tell of table t; what was counted, and waited, before is forgotten.
  void restore_membership(std::size_t t, const MembershipCounters& counters, const Waiting& waiting);
  // The last committed step, and event time up to it.
  void restore_clock(std::uint64_t step, std::deque<EventClock::Point> points);

  // Keys of a table whose rows have gone, in the order of their going.
  struct Gone {
    std::uint32_t table;
    std::vector<std::uint64_t> keys;
  };
  // Whether to list them from now on, and those listed since the last call.
  void list_gone(bool on);
  std::vector<Gone> take_gone();

 private:
  struct NativeTable {
    Index index;
    std::uint64_t num_provisional = 0;
  };
  struct Fresh {  // a provisional row of a batch that has ended
    std::uint32_t native_table, frame;
    std::uint64_t key;
    bool reached;
  };
  struct Seen {  // a key that a committed step reached
    std::uint32_t table;
    bool refused;
    std::uint64_t key;
  };
  struct Ended {  // a batch that has, and is still to be unpinned
    Buffer<std::uint32_t> places;
    std::vector<Fresh> fresh;  // with membership: all that are in RAM
    std::uint64_t step = 0;    // that it was; 0: discarded
    std::int64_t time = EventClock::kNoTime;
    std::vector<Seen> seen;  // of tables with membership
    bool on_device = false;
    Buffer<std::uint32_t> lines;
    std::vector<std::uint32_t> dirtied;  // of lines
  };
  struct Members {
    explicit Members(std::span<const TableInit> inits);
    std::vector<Membership> tables;
    EventClock clock;
    std::int64_t longest_ns = 0;  // that a row may live; 0: the clock is not needed
    std::uint32_t step = 0;       // the last that was committed
    bool is_settled = false;      // a batch is between settle() and its end
  };
  struct Tracking {            // of changes, for snapshots and deltas
    bool is_on = false;        // from the first on
    bool is_unsaved = true;    // no snapshot was kept, or the last was not
    bool is_followed = false;  // there is one who asks for deltas
    LocationTags locations;
    GoneKeys gone;               // since the last snapshot began
    GoneKeys::Lists tombstones;  // before it
    GoneKeys unsent;             // since the follower had all
    // Of the one that is under way.
    std::uint32_t table = 0;                // native table that is walked through
    std::optional<std::uint64_t> from = 0;  // hash to go on from; none: only deferred keys are left
    std::uint64_t num_keys = 0;             // to look at in one go
    std::vector<std::uint64_t> deferred;    // their records were on their way from disk
    bool is_complete = false;
    std::exception_ptr failure;
  };
  struct Found {  // where the keys of a batch were
    std::vector<RowCounters> tables;
    std::size_t fresh = 0, on_disk = 0;  // of all tables: the keys without a record in RAM
    std::size_t provisional = 0;
    std::size_t num_missing() const { return fresh + on_disk; }
  };

  NativeTable& table(std::size_t native_table);
  RowLog& log();
  std::uint64_t seed_of(std::size_t native_table) const {
    const TableInit& init = inits_[native_table / 2];
    return native_table % 2 == 0 ? init.seed : init.null_seed;
  }
  void require_located(const WorkingSet& ws) const;
  void require_shape(std::size_t num_keys, std::size_t num_floats) const;
  void require_tables(const WorkingSet& ws) const;
  void initialize_rows(std::size_t native_table, std::span<const std::uint64_t> keys, float* const* records) const;

  // plan.cpp; all with mutex_ held
  bool plan_locked(WorkingSet& ws);
  bool pins_all() const { return evicts_ || members_; }
  void start(WorkingSet& ws, bool train);
  Found find_places(WorkingSet& ws);
  Found find_block(WorkingSet& ws, const KeyBlock& block);
  void pin_found(WorkingSet& ws);
  void unpin_found(WorkingSet& ws);
  bool start_evicting();
  std::vector<std::uint32_t> free_frames(std::size_t num_frames);
  std::size_t num_excess_frames() const;
  bool shrink_to_budget();
  void evict(std::span<const std::uint32_t> victims);
  void forget(std::span<const std::uint32_t> victims);
  void append(std::span<const RecordId> ids, std::span<const std::byte* const> records, Location* locations);
  void place_missing(WorkingSet& ws, std::vector<std::uint32_t>& frames, std::size_t num_keys);
  void place_key(WorkingSet& ws, std::size_t native_table, std::uint32_t u, std::uint32_t frame);
  void begin_reading(WorkingSet& ws);
  void fill_fresh(WorkingSet& ws, std::span<const std::uint32_t> added) const;

  // counters.cpp; with mutex_ held
  void count(const WorkingSet& ws, std::span<const RowCounters> found);

  // fetch.cpp; with mutex_ held
  void compact();
  void require_no_orphans(const WorkingSet& ws) const;
  void return_loads(WorkingSet& ws);
  void end_loading(WorkingSet& ws);
  void read_around(std::span<std::uint32_t> places) const;
  void point_view(WorkingSet& ws);

  // end.cpp; drain() and what follows with mutex_ held
  void end_batch(WorkingSet& ws, std::uint64_t step);
  std::vector<Seen> seen_keys(const WorkingSet& ws) const;
  void store_scratch(WorkingSet& ws, bool committed) noexcept;
  void put_away_scratch(const WorkingSet& ws);
  void drain();
  void become_row(const Fresh& fresh);
  void drop_if_unused(const Fresh& fresh);
  void put_on_disk(std::span<const RecordId> ids, std::span<const std::byte* const> records, std::size_t& done,
                   std::span<const std::uint32_t> stamps = {});
  void put_beyond(std::span<const RecordId> ids, std::span<const std::byte* const> records);
  void set_place(RecordId id, Place place);

  // row_faults.cpp; where faults_ are
  void strike_plan(WorkingSet& ws);
  std::vector<std::vector<float>> faulty_copies(std::span<const RecordId> ids,
                                                std::span<const std::byte*> records) const;
  void strike_update(WorkingSet& ws);
  std::vector<KeyBlock> struck_twice(const WorkingSet& ws) const;

  // settle.cpp; with mutex_ held
  bool is_row(std::size_t native_table, std::uint32_t slot, std::uint32_t stamp) const;
  void find_rows(std::size_t native_table, std::span<const std::uint64_t> keys, std::uint32_t* slots) const;
  void settle_block(WorkingSet& ws, const KeyBlock& block);
  void redirect_refused(WorkingSet& ws) const;
  void commit_members(const Ended& batch);
  void remove_stale(std::size_t t, std::uint64_t first, std::uint64_t last);
  void take_out(std::size_t native_table, std::uint64_t key);
  void stamp(RecordId id, std::uint32_t step);
  Membership* members_of(std::size_t t);

  // travel.cpp
  void require_own(const WorkingSet& ws) const;
  void copy_weights(const WorkingSet& ws, std::size_t u, float* out) const;
  void point_adopted(WorkingSet& ws, std::span<const float> weights);
  void require_addable(const WorkingSet& ws, std::span<const std::int32_t> ids,
                       std::span<const std::uint8_t> reached) const;
  bool is_frozen(const WorkingSet& ws, std::size_t u) const;

  // copies.cpp
  void require_copies() const;
  void require_filled(const WorkingSet& ws) const;

  // gradients.cpp
  void start_gradients(WorkingSet& ws) const;
  void count_refused(WorkingSet& ws, std::size_t begin, std::size_t end,
                     std::span<const FeatureGradient> gradients) const;

  // lines.cpp; but for the first two, with mutex_ held
  void require_device() const;
  void require_at_hand(const WorkingSet& ws, std::span<const std::uint32_t> keys, std::size_t num_floats) const;
  void bind_lines();
  bool claim_lines(WorkingSet& ws);
  void count_lines(const WorkingSet& ws);
  void find_lines(WorkingSet& ws) const;
  std::vector<std::uint32_t> lines_to_give_up();
  std::vector<std::uint32_t> choose_lines(std::size_t n);
  void vacate(std::uint32_t line);
  void release_line(std::uint32_t line);
  void return_lines(WorkingSet& ws);
  void end_on_device(const Ended& batch);

  // snapshot.cpp; but for the first three and walk(), with mutex_ held
  void keep_trained(const WorkingSet& ws);
  void keep_batch(const WorkingSet& ws, std::span<const std::uint32_t> keys);
  void tag_trained(const WorkingSet& ws);
  void keep_rows(std::span<const RecordId> ids);
  void keep_rows(std::uint32_t native_table, std::span<const std::uint64_t> keys);
  void keep_some(std::span<const RecordId> ids);
  void keep_line(std::uint32_t line);
  void keep_stale(WorkingSet& ws);
  std::uint8_t tags_of(Place place) const;
  void set_tags(Place place, std::uint8_t tags);
  void drop_tags(Place place, std::uint8_t tags);
  std::uint32_t stamp_of(std::uint32_t native_table, std::uint32_t stamp) const;
  void note_gone(std::uint32_t native_table, std::uint64_t key);
  std::uint64_t most_gone() const;
  void begin_tracking();
  void require_between_steps() const;
  void let_stale_go();
  bool walk(std::size_t count, SnapshotRows& rows);
  std::vector<Index::Listed> next_pending(std::size_t count);
  void take_pending(std::unique_lock<std::mutex>& lock, std::span<const Index::Listed> pending, SnapshotRows& rows);
  void keep_deferred();

  // changes.cpp
  void require_followed() const;

  // rows_io.cpp
  void copy_rows(std::unique_lock<std::mutex>& lock, std::size_t native_table, std::span<const std::uint64_t> keys,
                 std::span<const std::uint32_t> slots, std::span<float> records);
  void import_block(NativeTable& table, std::size_t native_table, std::span<const std::uint64_t> keys,
                    const float* records, const std::uint32_t* last);

  void update_block(const WorkingSet& ws, const KeyBlock& block, UpdateArgs vector, UpdateArgs linear) const;

  Layout layout_;
  Rule vector_rule_, linear_rule_;
  std::vector<TableInit> inits_;
  std::shared_ptr<Budget> budget_;
  Policy policy_;
  std::optional<LogOptions> disk_;
  const bool forgets_;
  std::unique_ptr<Members> members_;  // none where no table has a membership rule
  std::vector<NativeTable> tables_;   // 2 * num_tables()
  Frames frames_;
  std::unique_ptr<RowLog> log_;     // from the first eviction on
  std::uint64_t buffer_bytes_ = 0;  // of the log, that the budget has counted
  NextUses next_uses_;
  std::unique_ptr<DeviceLines> lines_;  // null: rows are trained in RAM
  KeptRows kept_;
  Tracking tracking_;
  std::vector<float> zeros_;  // what an absent key reads as
  std::shared_ptr<RowFaults> faults_;
  std::uint64_t number_;                       // different for every group of the process
  std::atomic<std::uint64_t> num_changes_{0};  // of rows that a view may point to

  std::mutex mutex_;
  std::vector<WorkingSet*> loading_;  // batches planned, and not yet fetched, that need something from disk
  std::atomic<bool> evicts_ = false;  // from when RAM was full for the first time; changed with mutex_ held
  bool is_full_ = false;              // it is, and evicting begins when no batch is in flight
  std::size_t num_in_flight_ = 0;     // batches planned and not yet drained
  bool scratch_in_flight_ = false;
  std::atomic<bool> is_shrinking_{false};
  std::size_t num_on_device_ = 0;  // batches with lines, and not yet drained
  bool spilled_on_device_ = false;
  std::exception_ptr refused_;                 // what the disk said to a row that had to stay in RAM beyond the budget
  std::unordered_set<std::uint32_t> orphans_;  // frames without a record that batches in flight share
  std::size_t num_uncompacted_ = 0;            // rows appended to the log since compact()
  std::vector<RowCounters> table_counters_;
  GroupCounters counters_;  // without those by table
  bool lists_gone_ = false;
  std::vector<Gone> gone_;

  std::mutex ended_mutex_;  // taken last; so that a step that ends need not wait for a plan
  std::vector<Ended> ended_;
};

}  // namespace sfctr
