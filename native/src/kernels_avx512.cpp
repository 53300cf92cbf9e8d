// The kernels under this level's compiler flags (CMakeLists.txt).
#define SFCTR_LEVEL avx512
#define SFCTR_LEVEL_NAME "avx512"
#include "kernels.inc.h"
