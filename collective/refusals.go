package collective

import (
	"fmt"
	"strings"
	"sync"
)

// refusals are the processes that rank 0 did not let join. One of them may be a missing rank with a wrong token,
// so the error of a rendezvous that fails names them. The error also says why rank 0 could not accept a connection.
type refusals struct {
	mu    sync.Mutex
	texts []string // of the first shownRefusals
	count int

	unaccepted error // the last error of a listener's Accept; nil: it did not fail
}

// shownRefusals is the most processes that an error names: anyone who reaches the port can add one.
const shownRefusals = 4

// add notes a process by its address.
func (r *refusals) add(address string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count++; r.count <= shownRefusals {
		r.texts = append(r.texts, fmt.Sprintf("a process at %s (%s)", address, cut(why.Error(), 256)))
	}
}

// missed notes why rank 0 could not accept a connection.
func (r *refusals) missed(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unaccepted = why
}

// text returns the end of an error message; "" if no process was refused and each connection was accepted.
func (r *refusals) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := ""
	if r.count > 0 {
		text = "; rank 0 refused " + strings.Join(r.texts, ", ")
	}
	if more := r.count - len(r.texts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if r.unaccepted != nil {
		text += fmt.Sprintf("; rank 0 could not accept a connection: %v", r.unaccepted)
	}
	return text
}
