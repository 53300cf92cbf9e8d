// The Python module sfctr._native: hands the C++ core to data, store, lookahead and trace.
#include "bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "The native core: threads, hashing, working sets and rows. Calls that work or wait release the GIL.";
  // A script that ends with an open store is no leak of ours; nanobind would print a page about it.
  nanobind::set_leak_warnings(false);
  bind_hash(m);
  bind_threads(m);
  bind_working_set(m);
  bind_row_group(m);
  bind_trace(m);
}
