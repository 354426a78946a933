package cache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"pwc/internal/testkit"
	"strconv"
	"strings"
	"testing"
	"time"
)

// roles are the jobs of the test binary when it is started again, in addition to
// platformRoles: see TestMain.
var roles = map[string]func(args []string) error{"compile": compileRole, "crash": crashRole}

// start starts the test binary in a role.
func start(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}

// run runs the test binary in a role to its end.
func run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// compileRole makes keys 0 … n-1 in an order of its own, and adds a line for
// each compilation to a file. Args: dir, n, file. It begins when its input ends.
func compileRole(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	log, err := os.OpenFile(args[2], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	j := &testkit.Log{}
	s := New(Options{Dir: args[0], Logger: j.Logger()})
	io.Copy(io.Discard, os.Stdin)
	for _, i := range rand.Perm(n) {
		blob, err := makeOnce(context.Background(), s, testKey(i), func() []byte {
			fmt.Fprintf(log, "%d\n", i)
			time.Sleep(3 * time.Millisecond)
			return testBlob(i)
		})
		if err != nil {
			return err
		}
		if !bytes.Equal(blob, testBlob(i)) {
			return fmt.Errorf("key %d: wrong blob %q", i, blob)
		}
	}
	if err := s.PutModule(context.Background(), testModule("toy", n)); err != nil {
		return err
	}
	if text := j.Take(); text != "" {
		return errors.New(text)
	}
	return log.Close()
}

// Eight processes on one empty cache together compile each key once.
func TestOneCompileAmongProcesses(t *testing.T) {
	const processes, keys = 8, 12
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	write(t, log, nil)
	var cmds []*exec.Cmd
	var inputs []io.Closer
	var outs []*bytes.Buffer
	for range processes {
		cmd := start(t, "compile", dir, strconv.Itoa(keys), log)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds, inputs, outs = append(cmds, cmd), append(inputs, in), append(outs, out)
	}
	for _, in := range inputs {
		in.Close()
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, outs[i])
		}
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for line := range strings.Lines(string(data)) {
		times[strings.TrimSpace(line)]++
	}
	for i := range keys {
		if n := times[strconv.Itoa(i)]; n != 1 {
			t.Errorf("key %d was compiled %d times", i, n)
		}
	}
	s, j := logged(dir)
	for i := range keys {
		wantHit(t, s, i)
	}
	wantWhole(t, s)
	wantQuiet(t, j)
	if n := len(files(t, filepath.Join(dir, "v1", locksDir))) + len(files(t, filepath.Join(dir, "v1", tmpDir))); n != 1 {
		t.Errorf("%d locks and temporary files are left, want only the lock of collection", n)
	}
}

// crashRole compiles, collects and records without end, and prints every key
// that is stored. Args: dir.
func crashRole(args []string) error {
	j := &testkit.Log{}
	s := New(Options{Dir: args[0], Logger: j.Logger()})
	ctx := context.Background()
	for n := 0; ; n++ {
		i := rand.IntN(crashKeys)
		blob, err := makeOnce(ctx, s, testKey(i), func() []byte { return crashBlob(i) })
		if err != nil || !bytes.Equal(blob, crashBlob(i)) {
			fmt.Printf("wrong %d %v\n", i, err)
		}
		fmt.Printf("kept %d\n", i)
		// Modules, of entries that do not exist, are added, collected and get other
		// graphs. Entries have no module, and are too young to be collected.
		m := testModule(fmt.Sprint("crash", n%5), 0)
		for k := range n % 7 {
			m.Entries = append(m.Entries, ModuleEntry{testKey(crashKeys + k).id(), 0})
		}
		m.Graph = fmt.Appendf(nil, "graph %d", rand.IntN(3))
		if err := s.PutModule(ctx, m); err != nil {
			fmt.Println("wrong", err)
		}
		if n%10 == 9 {
			if _, err := s.GC(ctx, GCOptions{Grace: time.Hour}); err != nil {
				fmt.Println("wrong", err)
			}
		}
		// A graph and its manifest are two files. A kill between the two writes leaves
		// an old manifest: the only allowed warning.
		for line := range strings.Lines(j.Take()) {
			if !strings.Contains(line, graphFile) {
				fmt.Print("wrong ", line)
			}
		}
	}
}

const crashKeys = 40

// crashBlob is large, so that a kill may come during its write.
func crashBlob(i int) []byte { return bytes.Repeat(testBlob(i), 2000) }

// killsEnv is the variable with the number of kills of TestKill; the default keeps the
// test short.
const killsEnv = "PWC_CACHE_TEST_KILLS"

// A process that is killed at any moment leaves the entries whose Put had returned, and whole
// files. Only the graph of a module may differ from the one that its manifest names.
func TestKill(t *testing.T) {
	kills := 30
	if v := os.Getenv(killsEnv); v != "" {
		var err error
		if kills, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	dir := fastTemp(t)
	kept := map[int]bool{}
	for range kills {
		if len(kept) == crashKeys { // all hits: begin again
			if err := New(Options{Dir: dir}).Clear(t.Context()); err != nil {
				t.Fatal(err)
			}
			clear(kept)
		}
		cmd := start(t, "crash", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan() // wait for the first line
		text := []string{lines.Text()}
		timer := time.AfterFunc(time.Duration(rand.IntN(15000))*time.Microsecond, func() { cmd.Process.Kill() })
		for lines.Scan() {
			text = append(text, lines.Text())
		}
		cmd.Wait()
		timer.Stop()
		for _, line := range text {
			var i int
			if _, err := fmt.Sscanf(line, "kept %d", &i); err == nil {
				kept[i] = true
			} else if strings.HasPrefix(line, "wrong") {
				t.Error(line)
			}
		}

		s, j := logged(dir)
		for i := range crashKeys {
			blob, ok, err := s.Get(t.Context(), testKey(i))
			if err != nil || ok && !bytes.Equal(blob, crashBlob(i)) || kept[i] && !ok {
				t.Errorf("key %d after a kill: %d bytes, %v, %v; kept %v", i, len(blob), ok, err, kept[i])
			}
		}
		wantQuiet(t, j)
		v, err := s.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range v.Problems {
			if !strings.Contains(p.Error(), graphFile) && !strings.Contains(p.Error(), "which it lists") {
				t.Error(p)
			}
		}
		if t.Failed() {
			return
		}
	}
}
