// The functions of cuBLAS, cuDNN and the others that must write a result, or whose success torch needs to go on.
#include "gpu.h"
