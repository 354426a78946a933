// Programmatic dependent launch (PDL): the trigger for the dependent kernel, and the wait for the
// kernel before.

//@ wait_for_dependency
// wait_for_dependency returns when the writes of the kernels before are visible.
__device__ __forceinline__ void wait_for_dependency() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

//@ trigger_dependents
__device__ __forceinline__ void trigger_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
