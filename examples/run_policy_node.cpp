// The action run_policy as a node of BehaviorTree.CPP, by BehaviorTree.ROS2: a plugin for its TreeExecutionServer.
// Only `completed` is SUCCESS; a task that nothing says to be done ends by its time, which is FAILURE here.
#include <behaviortree_ros2/bt_action_node.hpp>
#include <behaviortree_ros2/plugins.hpp>
#include <vla_accel_msgs/action/run_policy.hpp>

class RunPolicy : public BT::RosActionNode<vla_accel_msgs::action::RunPolicy>
{
public:
  using BT::RosActionNode<vla_accel_msgs::action::RunPolicy>::RosActionNode;

  static BT::PortsList providedPorts()
  {
    return providedBasicPorts({BT::InputPort<std::string>("prompt"),
                               BT::InputPort<double>("timeout_s"),
                               BT::InputPort<std::string>("success_topic"),
                               BT::InputPort<std::string>("success_service"),
                               BT::InputPort<std::string>("success_question"),
                               BT::OutputPort<std::string>("termination_reason"),
                               BT::OutputPort<std::string>("message")});
  }

  bool setGoal(Goal& goal) override
  {
    goal.timeout_s = getInput<double>("timeout_s").value_or(0.0);
    goal.success_topic = getInput<std::string>("success_topic").value_or("");
    goal.success_service = getInput<std::string>("success_service").value_or("");
    goal.success_question = getInput<std::string>("success_question").value_or("");
    return getInput("prompt", goal.prompt).has_value();
  }

  BT::NodeStatus onResultReceived(const WrappedResult& answer) override
  {
    setOutput("termination_reason", answer.result->termination_reason);
    setOutput("message", answer.result->message);
    const bool completed = answer.result->termination_reason == Action::Result::TERMINATION_COMPLETED;
    return completed ? BT::NodeStatus::SUCCESS : BT::NodeStatus::FAILURE;
  }

  BT::NodeStatus onFailure(BT::ActionNodeErrorCode error) override
  {
    setOutput("message", std::string(BT::toStr(error)));
    return BT::NodeStatus::FAILURE;
  }

private:
  using Action = vla_accel_msgs::action::RunPolicy;
};

CreateRosNodePlugin(RunPolicy, "RunPolicy");
