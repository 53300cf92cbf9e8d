// The kernels under this level's compiler flags (CMakeLists.txt).
#define SFCTR_LEVEL baseline
#define SFCTR_LEVEL_NAME "baseline"
#include "kernels.inc.h"
