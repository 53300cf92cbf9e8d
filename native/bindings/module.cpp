// The Python module sfctr._native: hands the C++ core to data, store, parallel, lookahead and trace.
#include "bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "The native core: threads, hashing, working sets and rows. Every call releases the GIL.";
  bind_hash(m);
  bind_threads(m);
  bind_working_set(m);
  bind_row_group(m);
}
