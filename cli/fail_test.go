package cli

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"testing"
)

// errReported and errWrongCall are not printed. An error that is joined with errReported is.
func TestFailBesideAFinding(t *testing.T) {
	lost := errors.New("the file system is gone")
	for _, c := range []struct {
		err  error
		want string
	}{
		{errReported, ""},
		{errors.Join(errReported, nil), ""},
		{errors.Join(errReported, lost), "pwc: the file system is gone\n"},
		{errors.Join(errors.Join(lost, errReported), errors.New("and more")), "pwc: the file system is gone\nand more\n"},
		{errWrongCall, ""},
	} {
		var stdout, stderr bytes.Buffer
		a := &app{out: &stdout, err: &stderr, json: true}
		want := exitFailed
		if c.err == error(errWrongCall) {
			want = exitUsage
		}
		if code := a.fail(nil, c.err); code != want || stderr.String() != c.want || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, %q; want %d, %q", c.err, code, stderr.String(), want, c.want)
		}
	}
}

// A failed step makes the command fail. Its error is printed if no request ended with it.
func TestStepFailedWithoutARequest(t *testing.T) {
	var stderr bytes.Buffer
	g := &generation{app: &app{err: &stderr}, live: &liveLine{}, requests: []namedRequest{{refused: errors.New("no ids")}}}
	g.stepFailed(errors.New("a kernel failed"))
	if !g.failed || stderr.String() != "pwc: a step failed: a kernel failed\n" {
		t.Errorf("failed %v, %q", g.failed, stderr.String())
	}
}

// brokenListener fails to accept, and signals the call.
type brokenListener struct {
	net.Listener
	asked chan struct{}
}

func (l brokenListener) Accept() (net.Conn, error) {
	close(l.asked)
	return nil, errors.New("no more files")
}

// An error of the metrics server is an error of the command; the end of the server is not.
func TestMetricsThatCannotBeServed(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if err := listening(metricsServer(http.NotFoundHandler()), listen())(); err != nil {
		t.Error(err)
	}
	l := brokenListener{listen(), make(chan struct{})}
	stop := listening(metricsServer(http.NotFoundHandler()), l)
	<-l.asked
	if err := stop(); err == nil || err.Error() != "--metrics: no more files" {
		t.Errorf("%v, want the listener's error, with the flag", err)
	}
}
