// Programmatic dependent launch (PDL): the trigger for the dependent kernel, and the wait for the
// kernel before.

//@ wait_for_previous
// What earlier kernels wrote is there from here on.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

//@ let_next_start
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
