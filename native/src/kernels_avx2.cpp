// The kernels under this level's compiler flags (CMakeLists.txt).
#define SFCTR_LEVEL avx2
#define SFCTR_LEVEL_NAME "avx2"
#include "kernels.inc.h"
