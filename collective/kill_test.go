package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Variables that make the test binary a rank.
const (
	rankVariable    = "PWC_TEST_RANK"
	sizeVariable    = "PWC_TEST_SIZE"
	addressVariable = "PWC_TEST_ADDRESS"
)

// rankProcess is a rank that exchanges numbers until the group ends. It prints the error.
func rankProcess() int {
	rank, _ := strconv.Atoi(os.Getenv(rankVariable))
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	g, err := Join(context.Background(), "tp", rank, size, os.Getenv(addressVariable), Options{JoinLimit: 5 * time.Second})
	for i := 0; err == nil; i++ {
		err = sumOf(context.Background(), g, i)
	}
	fmt.Println(err)
	if g != nil && g.Err() == nil {
		return 1 // the error is not the end of the group
	}
	return 3
}

// TestKilledRanks kills a process of a group at a random time, and holds that all others end within
// ten seconds with an error that names it (C22), and that the group can be joined anew.
// PWC_TEST_KILLS says how often.
func TestKilledRanks(t *testing.T) {
	kills := 4
	if n, err := strconv.Atoi(os.Getenv("PWC_TEST_KILLS")); err == nil {
		kills = n
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	name := filepath.Join(t.TempDir(), "meeting")
	for n := range kills {
		size := 2 + random.IntN(3)
		victim, after := random.IntN(size), time.Duration(random.IntN(200))*time.Millisecond
		if err := killOne(self, name, size, victim, after); err != nil {
			t.Fatalf("kill %d, of rank %d of %d after %s: %v", n, victim, size, after, err)
		}
		_ = os.Remove(name) // where rank 0 was killed before all had joined
	}
}

func killOne(self, file string, size, victim int, after time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), after+20*time.Second)
	defer cancel()
	ranks, out := make([]*exec.Cmd, size), make([]bytes.Buffer, size)
	for r := range ranks {
		c := exec.CommandContext(ctx, self)
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", rankVariable, r), fmt.Sprintf("%s=%d", sizeVariable, size), addressVariable+"="+FileScheme+file)
		c.Stdout, c.Stderr = &out[r], &out[r]
		if err := c.Start(); err != nil {
			return err
		}
		ranks[r] = c
	}
	time.Sleep(after)
	errs := []error{ranks[victim].Process.Kill()}
	killed := time.Now()
	for r, c := range ranks {
		err := c.Wait()
		if r == victim {
			continue
		}
		if waited := time.Since(killed); waited > 10*time.Second {
			errs = append(errs, fmt.Errorf("rank %d ended after %s", r, waited))
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(out[r].String(), fmt.Sprintf("rank %d", victim)) {
			errs = append(errs, fmt.Errorf("rank %d: %w: %s", r, err, out[r].String()))
		}
	}
	return errors.Join(errs...)
}
